"""Injected dropout: a module's own loss, with the masks that its import draws in any step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import maniple as mp
from maniple.operators.library.randomness.draw import Draw
from maniple.operators.operator.operator import TileContext
from maniple.operators.operator.random_stream import RandomStream
from maniple.process.error import RequestError


class Block(nn.Module):
    """Attention and a feed-forward layer, all with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)
        self.drop = nn.Dropout(0.4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss."""
        h = self.first(self.drop(x)).unflatten(-1, (2, 3)).transpose(1, 2)
        h = F.scaled_dot_product_attention(h, h, h, dropout_p=0.3 if self.training else 0.0)
        h = F.dropout(h.transpose(1, 2).flatten(2), 0.2, self.training)
        return F.cross_entropy(self.second(h).flatten(0, 1), y.flatten())


def batch() -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(0)
    return torch.randn(4, 5, 6, generator=chance, dtype=torch.float64), torch.randint(3, (4, 5), generator=chance)


def test_a_module_with_injected_masks_has_the_losses_of_the_trainer() -> None:
    module = Block().double()
    x, y = batch()
    graph = mp.from_torch(module, (x, y))
    plan = mp.search(graph, mp.Machine.cpu(2), strategy="data_parallel")
    descent = torch.optim.SGD(module.parameters(), lr=0.1)
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1), seed=2**63 + 7) as trainer:
        for step in range(3):
            with mp.testing.InjectedDropout(graph, seed=2**63 + 7, step=step):
                loss = module(x, y)
            descent.zero_grad()
            loss.backward()
            descent.step()
            assert trainer.step(x, y) == pytest.approx(loss.item(), rel=0, abs=1e-12)


class Layers(nn.Module):
    """Recurrent layers with dropout between them, and one layer that has nothing to drop."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(6, 4, 3, dropout=0.4, batch_first=True)
        self.second = nn.GRU(4, 3, 2, dropout=0.3, batch_first=True, bidirectional=True)
        self.last = nn.GRU(6, 3, batch_first=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss."""
        h = self.last(self.second(self.first(x)[0])[0])[0]
        return F.cross_entropy(h.flatten(0, 1), y.flatten())


def test_recurrent_layers_are_injected() -> None:
    torch.manual_seed(0)
    module = Layers().double()
    x, y = batch()
    graph = mp.from_torch(module, (x, y))
    plan = mp.search(graph, mp.Machine.cpu(2), strategy="data_parallel")
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1), seed=1) as trainer, mp.testing.InjectedDropout(graph, 1, 0):
        assert trainer.step(x, y) == pytest.approx(module(x, y).item(), rel=0, abs=1e-12)


class Heads(nn.Module):
    """torch's own multi-head attention, once with the weights and once by the fused function; queries without heads."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.MultiheadAttention(6, 2, dropout=0.3, batch_first=True)
        self.second = nn.MultiheadAttention(6, 3, dropout=0.2, batch_first=True)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss."""
        h, _ = self.first(x, x, x)
        h, _ = self.second(h, h, h, need_weights=False)
        h = F.scaled_dot_product_attention(h, h, h, dropout_p=0.4)
        return F.cross_entropy(self.last(h).flatten(0, 1), y.flatten())


def test_torch_s_own_attention_is_injected() -> None:
    torch.manual_seed(0)
    module = Heads().double()
    x, y = batch()
    graph = mp.from_torch(module, (x, y))
    plan = mp.search(graph, mp.Machine.cpu(2), strategy="data_parallel")
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1), seed=1) as trainer, mp.testing.InjectedDropout(graph, 1, 0):
        assert trainer.step(x, y) == pytest.approx(module(x, y).item(), rel=0, abs=1e-12)


def test_a_module_that_drops_otherwise_is_refused() -> None:
    module = Block().double()
    x, y = batch()
    graph = mp.from_torch(module, (x, y))
    with (
        pytest.raises(RequestError, match=r"has p=0\.4, the module calls it with 0.9"),
        mp.testing.InjectedDropout(graph, 0, 0),
    ):
        F.dropout(x, 0.9)
    with pytest.raises(RequestError, match=r"did not call .* nor 1 others"), mp.testing.InjectedDropout(graph, 0, 0):
        module.drop(x)
    with mp.testing.InjectedDropout(graph, 0, 0):
        module(x, y)
        with pytest.raises(RequestError, match="has no more"):
            module.drop(x)


def test_what_drops_nothing_is_left_alone() -> None:
    graph = mp.Graph()
    x = torch.ones(3)
    with mp.testing.InjectedDropout(graph, 0, 0):
        assert torch.equal(F.dropout(x, 0.5, training=False), x)
        assert torch.equal(nn.Dropout(0.0)(x), x)


class Noisy(nn.Module):
    """Draws of every kind, and channels dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(6, 6), nn.Dropout1d(0.4)

    def forward(self, x: Tensor) -> Tensor:
        """The loss."""
        h = self.drop(self.layer(x))
        h = h + torch.randn_like(h) * torch.bernoulli(h.detach().sigmoid()) + torch.rand(4, 1, 6, dtype=h.dtype)
        h = (
            h * h.new_empty(4, 1, 1).bernoulli_(0.7)
            + torch.normal(h.detach(), 0.5)
            + torch.empty_like(h).uniform_(-1, 1)
        )
        h = F.alpha_dropout(F.gumbel_softmax(h), 0.3, training=True)
        return F.fractional_max_pool2d(h.unsqueeze(1), 2, output_size=(2, 3)).square().mean()


def test_a_module_with_injected_draws_has_the_losses_of_the_trainer(tmp_path: Path) -> None:
    module, (x, _) = Noisy().double(), batch()
    graph = mp.from_torch(module, (x,))
    graph.save(tmp_path / "graph.json")
    assert mp.Graph.load(tmp_path / "graph.json").fingerprint() == graph.fingerprint()
    plan = mp.search(graph, mp.Machine.cpu(2), strategy="random", seed=2)
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.0), seed=5) as trainer:
        losses = [trainer.step(x) for _ in range(2)]
    assert losses[0] != losses[1]
    for step, loss in enumerate(losses):
        with mp.testing.InjectedDropout(graph, seed=5, step=step):
            assert module(x).item() == pytest.approx(loss, rel=1e-12)


def test_draws_have_the_moments_of_their_distributions() -> None:
    clock = torch.tensor([3, 1])
    for distribution, parameters, mean, variance in (
        ("uniform", (-1.0, 3.0), 1.0, 4 / 3),
        ("normal", (2.0, 0.5), 2.0, 0.25),
        ("bernoulli", (0.3,), 0.3, 0.21),
        ("exponential", (2.0,), 0.5, 0.25),
        ("integers", (0.0, 6.0), 2.5, 35 / 12),
    ):
        operator = Draw(distribution, f"{', ' * (len(parameters) - 1)} -> b c", "float64", (("b", 200), ("c", 50)))
        bound = operator.rule(((),) * len(parameters)).bind(((),) * len(parameters))
        (tile,) = bound.tiles({})
        context = TileContext(tile, bound.extents(), operator, stream=RandomStream.of("noise", clock))
        found = operator.forward(context, tuple(torch.tensor(value) for value in parameters))
        assert found.shape == (200, 50)
        deviation = (variance / found.numel()) ** 0.5
        assert abs(found.mean().item() - mean) < 4 * deviation, distribution
        assert found.var().item() == pytest.approx(variance, rel=0.1), distribution


def test_an_unknown_distribution_is_refused() -> None:
    with pytest.raises(RequestError, match=r"unknown 'nromal'.*did you mean 'normal'"):
        Draw("nromal", "-> b", "float64")


class Unbatched(nn.Module):
    """Whole channels of one sample, which has no axis of samples, are dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, 33.0, dtype=torch.float64).reshape(4, 2, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return (F.dropout3d(self.weight, 0.5, training=True) ** 2).sum() + x.sum()


def test_the_channels_of_one_sample_are_injected() -> None:
    module, x = Unbatched(), torch.ones(4, dtype=torch.float64)
    graph = mp.from_torch(module, (x,))
    with mp.Trainer(graph, mp.search(graph, mp.Machine.cpu(1)), optimizer=mp.SGD(lr=0.1), seed=3) as trainer:
        ours = trainer.step(x)
    with mp.testing.InjectedDropout(graph, seed=3, step=0):
        assert module(x).item() == pytest.approx(ours, rel=1e-12)
