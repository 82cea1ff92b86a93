"""Less common forms of common layers: imported without opaque operators, and one step under random plans is torch's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import maniple as mp
from maniple.process.error import RequestError

TOLERANCE = 1e-11  # of float64, after one step

Forward = Callable[["Variant", Tensor], Tensor]


class Variant(nn.Module):
    """A layer, then what is to be imported."""

    def __init__(self, forward: Forward, *layers: nn.Module) -> None:
        super().__init__()
        self.first, self.layers = nn.Linear(6, 6), nn.ModuleList(layers)
        self.own = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.own(self, self.first(x))


def probabilities(h: Tensor) -> Tensor:
    return torch.linspace(0, 3, h.numel(), dtype=h.dtype).reshape(h.shape).softmax(1)


def causal(h: Tensor) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(2, dtype=h.dtype)


def moved(h: Tensor) -> Tensor:
    grid = F.affine_grid(h.view(-1, 2, 3).tanh(), [len(h), 1, 3, 3], align_corners=False)
    return F.grid_sample(h.view(-1, 1, 2, 3), grid, align_corners=False)


def numbers(h: Tensor) -> Tensor:
    return (h > 0)[:, :2].long().flatten()


VARIANTS: dict[str, tuple[Forward, tuple[nn.Module, ...], str]] = {
    "targets that are probabilities": (
        lambda _, h: F.cross_entropy(h, probabilities(h), label_smoothing=0.1),
        (),
        "cross_entropy_loss",
    ),
    "weighted targets that are probabilities": (
        lambda _, h: F.cross_entropy(h, probabilities(h), torch.linspace(1, 2, 6, dtype=h.dtype), reduction="sum"),
        (),
        "cross_entropy_loss",
    ),
    "a recurrent layer with projections": (
        lambda m, h: m.layers[0](h.reshape(-1, 2, 6))[0].square().sum(),
        (nn.LSTM(6, 5, 2, proj_size=3, batch_first=True),),
        "lstm",
    ),
    "extrema with ties": (lambda _, h: h.relu().amin(1).sum() + h.amax(0).square().sum() + h.max(), (), "amax"),
    "borders of a constant": (lambda _, h: F.pad(h, (1, -2, 2, 0), value=1.5).sin().sum(), (), "pad"),
    "triangles": (lambda _, h: (h.tril(1) @ h.triu(-1).T).sum(), (), "tril"),
    "scaled products and sums": (lambda _, h: torch.addmm(h, h, h[:6], beta=0.5, alpha=-2).sum(), (), "addmm"),
    "a slope for every channel": (
        lambda m, h: m.layers[0](h.view(-1, 3, 2, 1).expand(-1, -1, -1, 3)).square().sum(),
        (nn.PReLU(3),),
        "prelu",
    ),
    "elements repeated in a row": (
        lambda _, h: (h.repeat_interleave(2, 1) * torch.linspace(0, 1, 12, dtype=h.dtype)).square().sum(),
        (),
        "repeat_interleave",
    ),
    "a decoder that is given its mask": (
        lambda m, h: m.layers[0](h.view(-1, 2, 6), h.view(-1, 2, 6), tgt_mask=causal(h)).square().sum(),
        (nn.Transformer(6, 2, 1, 1, 7, dropout=0.0, batch_first=True),),
        "layers",
    ),
    "an element of each row": (
        lambda _, h: h[torch.arange(len(h)), torch.tensor([1, -2] * 4)[: len(h)]].square().sum(),
        (),
        "index",
    ),
    "some columns": (lambda _, h: (h[:, [3, 0, 3]] * h.view(-1, 2, 3)[:, 1]).sum(), (), "index"),
    "pairs of rows and columns": (
        lambda _, h: h.view(-1, 2, 3)[torch.arange(len(h))[:, None], [[0, 1]], [[2, 0]]].sin().sum(),
        (),
        "index",
    ),
    "indices apart from each other": (lambda _, h: h.view(-1, 2, 3)[[0, 1], :, [2, 0]].sin().sum(), (), "index"),
    "a reduction by index": (
        lambda _, h: h.scatter_reduce(1, h[:, :2].argsort(1), h[:, 2:4], "amax").square().sum(),
        (),
        "scatter_reduce",
    ),
    "several times in a row": (
        lambda _, h: (h.repeat(1, 2) * torch.linspace(0, 1, 12, dtype=h.dtype)).sum() + h.tile(2, 1, 1).square().sum(),
        (),
        "repeat",
    ),
    "a diagonal of a constant": (
        lambda _, h: (h[:6] @ h[:6].T).clone().fill_diagonal_(-3.0).sin().sum(),
        (),
        "fill_diagonal",
    ),
    "samples of a moved grid": (lambda _, h: moved(h).square().sum(), (), "grid_sampler"),
    "a table of sparse gradients": (
        lambda m, h: (m.layers[0](torch.arange(16).view(8, 2)[: len(h)] % 5).sum(1) * h).sin().sum(),
        (nn.Embedding(5, 6, sparse=True),),
        "layers",
    ),
    "bags that name the end of the last one": (
        lambda m, h: (m.layers[0](numbers(h), torch.arange(0, 2 * len(h) + 1, 2)) * h).sin().sum(),
        (nn.EmbeddingBag(5, 6, mode="mean", include_last_offset=True),),
        "layers",
    ),
    "a penalty of a gradient": (
        lambda m, h: (
            torch.autograd.grad(m.layers[0](h.sin()).square().sum(), m.layers[0].weight, create_graph=True)[0]
            .square()
            .sum()
        ),
        (nn.Linear(6, 1),),
        "layers",
    ),
    "parts without elements": (lambda _, h: torch.split(h, [0, 2, 4, 0], 1)[1].sin().sum(), (), "split"),
    "bounded norms": (lambda _, h: torch.renorm(h, 2, 0, 0.7).square().sum(), (), "renorm"),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_split_and_gives_what_torch_gives(name: str) -> None:
    forward, layers, operator = VARIANTS[name]
    torch.manual_seed(0)
    module = Variant(forward, *layers).double()
    x = torch.randn(8, 6, dtype=torch.float64)
    graph = mp.from_torch(module, (x,))
    assert graph.opaque == ()
    node = next(node for node in graph.nodes if node.name.startswith((operator, "layers")))
    assert max(factor.highest_degree for factor in graph.bound(node).factors) > 1
    loss = module(x)
    loss.backward()
    expected = {key: v.detach() - v.grad for key, v in module.named_parameters() if v.grad is not None}
    for seed in range(3):
        plan = mp.search(graph, mp.Machine.cpu(3), strategy="random", seed=seed)
        with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=1.0)) as trainer:
            assert trainer.step(x) == pytest.approx(loss.item(), rel=TOLERANCE, abs=TOLERANCE)
            found = trainer.parameters()
        for key, value in expected.items():
            assert torch.allclose(found[key], value, rtol=TOLERANCE, atol=TOLERANCE), key


def test_a_lazy_module_is_refused_until_it_knows_its_sizes() -> None:
    with pytest.raises(RequestError, match=r"'layers.0.weight' has no size yet.*call the module"):
        mp.from_torch(Variant(lambda m, h: m.layers[0](h).sum(), nn.LazyLinear(3)), (torch.zeros(4, 6),))


@pytest.mark.parametrize("end", [15, 17])
def test_bags_that_do_not_end_with_their_numbers_are_refused(end: int) -> None:
    """Of these torch's kernels differ: of float64 the last bag has the numbers behind its end, of float32 not."""
    bags = nn.EmbeddingBag(5, 6, mode="sum", include_last_offset=True)
    module = Variant(lambda m, h: (m.layers[0](numbers(h), torch.tensor([0, 8, end])) * h[:2]).sum(), bags)
    with pytest.raises(RequestError, match=rf"expected 16 as the last offset, for that many numbers, got {end}; cut"):
        mp.from_torch(module, (torch.zeros(8, 6),))


@pytest.mark.parametrize("affine", [False, True])
def test_a_batch_norm_that_counts_its_batches_averages_over_them(affine: bool) -> None:
    """Three batches: its statistics are then the means of theirs, and the module is as it was after the import."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(6, momentum=None, affine=affine)
    module = Variant(lambda m, h: torch.tanh(m.layers[0](h)).sum(1).square().sum(), norm).double()
    batches = [torch.randn(8, 6, dtype=torch.float64) for _ in range(3)]
    graph = mp.from_torch(module, (batches[0],))
    assert graph.opaque == ()
    assert "forward" not in vars(norm)
    plans = [mp.search(graph, mp.Machine.cpu(3), strategy="random", seed=seed) for seed in range(2)]
    found = []
    for plan in plans:
        with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1)) as trainer:
            losses = [trainer.step(batch) for batch in batches]
            found.append((losses, trainer.state_dict()))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    expected = []
    for batch in batches:
        optimizer.zero_grad()
        loss = module(batch)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    state = module.state_dict()
    assert state["layers.0.num_batches_tracked"] == 3
    for losses, values in found:
        assert losses == pytest.approx(expected, rel=1e-10)
        for key, value in state.items():
            assert torch.allclose(values[key], value, rtol=1e-10, atol=1e-10), key
    assert mp.from_torch(module.eval(), (batches[0],)).opaque == ()
