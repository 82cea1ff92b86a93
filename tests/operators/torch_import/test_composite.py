"""Composites: written as their parts where all of these have a rule, whole where that would change gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import maniple as mp

TOLERANCE = 1e-11  # of float64, after one step

COMPOSITES: dict[str, tuple[Callable[[Tensor], Tensor], set[str]]] = {
    "side by side": (lambda h: torch.hstack([h, h.sin()]), {"cat"}),
    "on each other": (lambda h: torch.vstack([h, h.sin()]), {"cat"}),
    "a product of all pairs": (lambda h: torch.kron(h, h[:2]), {"mul"}),
    "a product along one dimension": (lambda h: torch.tensordot(h, h.cos(), dims=([1], [1])), {"mm"}),
    "areas": (torch.trapz, {"sum", "add", "sub"}),
}


class Applied(nn.Module):
    """A layer, then a composite."""

    def __init__(self, own: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.own = nn.Linear(6, 6), own

    def forward(self, x: Tensor) -> Tensor:
        return self.own(self.first(x)).square().sum()


@pytest.mark.parametrize("name", COMPOSITES)
def test_a_composite_is_written_as_its_parts(name: str) -> None:
    own, parts = COMPOSITES[name]
    torch.manual_seed(0)
    module, x = Applied(own).double(), torch.randn(4, 6, dtype=torch.float64)
    graph = mp.from_torch(module, (x,))
    assert graph.opaque == ()
    assert parts <= {node.name.partition("_")[0] for node in graph.nodes}
    loss = module(x)
    loss.backward()
    plan = mp.search(graph, mp.Machine.cpu(3), strategy="random", seed=0)
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=1.0)) as trainer:
        assert trainer.step(x) == pytest.approx(loss.item(), rel=TOLERANCE)
        found = trainer.parameters()["first.weight"]
    assert torch.allclose(found, module.first.weight.detach() - module.first.weight.grad, rtol=0, atol=TOLERANCE)


def test_a_composite_that_writes_to_a_part_of_a_tensor_is_one_task() -> None:
    graph = mp.from_torch(Applied(lambda h: torch.block_diag(h, h)), (torch.zeros(4, 6),))
    (whole,) = graph.opaque
    assert "block_diag" in whole


class Clamped(nn.Module):
    """A layer whose result is written to without gradients; autograd lets the old value's gradient through."""

    def __init__(self, write: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.first, self.write = nn.Linear(6, 6), write

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).clone()
        with torch.no_grad():
            self.write(h)
        return (h * torch.arange(6)).square().sum()


class Twice(Clamped):
    """Written to twice, with an operator between."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).clone()
        with torch.no_grad():
            self.write(h)
        h = h * 3
        with torch.no_grad():
            self.write(h)
        with torch.no_grad():
            self.write(h)
        return (h * torch.arange(6)).square().sum()


@pytest.mark.parametrize("kind", [Clamped, Twice])
def test_what_is_written_without_gradients_has_the_old_values_gradient(kind: type[Clamped]) -> None:
    torch.manual_seed(0)
    module, x = kind(lambda h: h.clamp_(min=0.25).mul_(2)).double(), torch.randn(4, 6, dtype=torch.float64)
    graph = mp.from_torch(module, (x,))
    loss = module(x)
    loss.backward()
    plan = mp.search(graph, mp.Machine.cpu(2), strategy="random", seed=0)
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=1.0)) as trainer:
        assert trainer.step(x) == pytest.approx(loss.item(), rel=TOLERANCE)
        found = trainer.parameters()["first.weight"]
    assert torch.allclose(found, module.first.weight.detach() - module.first.weight.grad, rtol=1e-11, atol=TOLERANCE)


def test_a_part_written_without_gradients_is_refused() -> None:
    with pytest.raises(mp.RequestError, match=r"without gradients, to a part of a tensor.*detach the tensor first"):
        mp.from_torch(Clamped(lambda h: h[0].zero_()), (torch.zeros(4, 6),))
