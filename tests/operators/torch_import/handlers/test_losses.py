"""Losses, distances and bags: split by sample, and one step under random plans is torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import maniple as mp

TOLERANCE = 1e-11  # of float64, after one step
SAMPLES = 8


class Compared(nn.Module):
    """Rows made by a layer of its own for each input of floats, and what is made of them."""

    def __init__(self, own: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.own = nn.Linear(6, 5), nn.Linear(6, 5), own

    def forward(self, x: Tensor, y: Tensor, labels: Tensor) -> Tensor:
        return self.own(self.first(x), self.second(y), labels)


def weights() -> Tensor:
    return torch.linspace(1, 2, 5, dtype=torch.float64)


def signs(labels: Tensor) -> Tensor:
    return (labels % 2) * 2 - 1


LOSSES: dict[str, Callable[..., Tensor]] = {
    "likelihood with weights": lambda a, _, n: F.nll_loss(a.log_softmax(1), n, weights(), ignore_index=1),
    "likelihood with weights, summed": lambda a, _, n: F.nll_loss(a.log_softmax(1), n, weights(), reduction="sum"),
    "entropy of each sample": lambda a, _, n: F.cross_entropy(a, n, weights(), reduction="none").square().mean(),
    "triplets": lambda a, b, _: F.triplet_margin_loss(a, b, a.roll(1, 1), margin=2.0, swap=True),
    "cosines and labels": lambda a, b, n: F.cosine_embedding_loss(a, b, signs(n), margin=0.1),
    "margins of classes": lambda a, _, n: F.multi_margin_loss(a, n, margin=0.5),
    "margins of labels": lambda a, _, n: F.multilabel_margin_loss(a, n[:, None].expand(-1, 5).contiguous()),
    "ranks": lambda a, b, n: F.margin_ranking_loss(a, b, signs(n)[:, None].expand(-1, 5), margin=0.3),
    "hinges": lambda a, _, n: F.hinge_embedding_loss(a, signs(n)[:, None].expand(-1, 5)),
    "counts": lambda a, b, _: F.poisson_nll_loss(a, b.square()),
    "normal values": lambda a, b, _: F.gaussian_nll_loss(a, a.detach().sin(), b.exp(), full=True, eps=0.7),
    "cosines": lambda a, b, _: F.cosine_similarity(a, b).square().mean(),
    "cosines of columns": lambda a, b, _: F.cosine_similarity(a, b, dim=0).square().mean(),
    "distances": lambda a, b, _: F.pairwise_distance(a, b, keepdim=True).mean(),
    "distances of all pairs": lambda a, b, _: torch.cdist(a, b).square().mean(),
}


def check(module: nn.Module, given: tuple[Any, ...]) -> None:
    """Hold one step under random plans against torch's."""
    graph = mp.from_torch(module, given)
    assert graph.opaque == ()
    loss = module(*given)
    loss.backward()
    expected = {key: v.detach() - v.grad for key, v in module.named_parameters() if v.grad is not None}
    for seed in range(2):
        plan = mp.search(graph, mp.Machine.cpu(3), strategy="random", seed=seed)
        with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=1.0)) as trainer:
            assert trainer.step(*given) == pytest.approx(loss.item(), rel=TOLERANCE, abs=TOLERANCE)
            found = trainer.parameters()
        for key, value in expected.items():
            assert torch.allclose(found[key], value, rtol=TOLERANCE, atol=TOLERANCE), key


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_split_and_gives_what_torch_gives(name: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, SAMPLES, 6, dtype=torch.float64)
    check(Compared(LOSSES[name]).double(), (x, y, torch.arange(SAMPLES) % 5))


class Bagged(nn.Module):
    """Bags of words, and a class for each."""

    def __init__(self, own: Callable[..., Tensor] | None = None, **options: Any) -> None:
        super().__init__()
        self.bags, self.out, self.own = nn.EmbeddingBag(11, 6, **options), nn.Linear(6, 5), own

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        found = self.bags(words) if self.own is None else self.own(words, self.bags.weight)
        return F.cross_entropy(self.out(found), labels)


def scaled(words: Tensor, table: Tensor) -> Tensor:
    return F.embedding_bag(words, table, mode="sum", per_sample_weights=(words % 3).to(table.dtype), padding_idx=2)


@pytest.mark.parametrize(
    "module",
    [
        lambda: Bagged(mode="sum"),
        lambda: Bagged(mode="mean", padding_idx=3),
        lambda: Bagged(mode="max"),
        lambda: Bagged(scaled),
    ],
    ids=["sum", "mean", "max", "weighted sum"],
)
def test_bags_are_split_and_give_what_torch_gives(module: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    words = torch.randint(11, (SAMPLES, 4))
    words[0] = 3  # a bag of nothing but padding
    check(module().double(), (words, torch.arange(SAMPLES) % 5))


@pytest.mark.parametrize("training", [True, False])
def test_an_instance_norm_keeps_torchs_statistics(training: bool) -> None:
    torch.manual_seed(0)
    norm = nn.InstanceNorm1d(3, affine=True, track_running_stats=True).double()
    module = nn.Sequential(norm, nn.Flatten(), nn.Linear(6, 4)).double().train(training)
    x, labels = torch.randn(SAMPLES, 3, 2, dtype=torch.float64), torch.arange(SAMPLES) % 4
    graph = mp.from_torch(module, (x,), loss=F.cross_entropy, targets=(labels,))
    plan = mp.search(graph, mp.Machine.cpu(2), strategy="random", seed=1)
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1)) as trainer:
        loss, found = trainer.step(x, labels), trainer.state_dict()
    assert loss == pytest.approx(F.cross_entropy(module(x), labels).item(), rel=TOLERANCE)
    for name in ("running_mean", "running_var"):
        assert torch.allclose(found[f"0.{name}"], getattr(norm, name), rtol=TOLERANCE, atol=TOLERANCE), name


def test_a_negative_variance_is_no_number() -> None:
    module = Compared(lambda a, b, _: F.gaussian_nll_loss(a, b.detach(), -b.square() - 1))
    given = (torch.ones(4, 6), torch.ones(4, 6), torch.zeros(4, dtype=torch.int64))
    graph = mp.from_torch(module, given)
    plan = mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel")
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1)) as trainer, pytest.raises(mp.RunError, match="NaN"):
        trainer.step(*given)


class Connectionist(nn.Module):
    """Frames, each of which may be one of four words or none."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, x: Tensor, y: Tensor, frames: Tensor, words: Tensor) -> Tensor:
        return of_frames(self.layer(x), y, frames, words)


def of_frames(logits: Tensor, y: Tensor, frames: Tensor, words: Tensor) -> Tensor:
    return F.ctc_loss(logits.log_softmax(-1).transpose(0, 1), y, frames, words)


def test_ctc_is_refused_by_name_and_trains_where_it_is_called_whole() -> None:
    chance = torch.Generator().manual_seed(0)
    x, y = torch.randn(4, 7, 6, generator=chance), torch.randint(1, 5, (4, 3), generator=chance)
    batch = x, y, torch.tensor([7, 6, 7, 5]), torch.tensor([3, 2, 1, 3])
    module = Connectionist()
    with pytest.raises(mp.RequestError, match=r"ctc_loss cannot be imported.*Graph\.call"):
        mp.from_torch(module, batch)
    graph = mp.Graph("connectionist")
    named = zip("xyfw", batch, strict=True)
    given = [graph.input(name, tuple(value.shape), str(value.dtype).removeprefix("torch.")) for name, value in named]
    logits = graph.linear(given[0], 5, name="layer")
    graph.loss(graph.call(of_frames, logits, *given[1:], results=[((), "float32")])[0])
    graph.load_state_dict(module.state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    plan = mp.search(graph, mp.Machine.detect(), strategy="data_parallel")
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1)) as trainer:
        for _ in range(3):
            optimizer.zero_grad()
            loss = module(*batch)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            assert trainer.step(*batch) == pytest.approx(loss.item(), rel=1e-5)
