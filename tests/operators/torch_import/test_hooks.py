"""What changes gradients beside forward's operators is refused, and leaves torch as it was."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import maniple as mp
from maniple.operators.torch_import.hooks import check_gradients
from maniple.process.error import RequestError


class Sevenfold(torch.autograd.Function):
    """The identity, with a gradient that is none of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The identity."""
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        """Seven times the gradient."""
        del ctx
        return 7 * gradient


class Net(nn.Module):
    """A layer, and what is done with its result."""

    def __init__(self, then: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.then = nn.Linear(3, 2), then

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss."""
        return F.cross_entropy(self.then(self.layer, x), y)


def hooked(layer: nn.Module, x: Tensor) -> Tensor:
    h: Tensor = layer(x)
    h.register_hook(lambda gradient: 10 * gradient)
    return h


class Silent(torch.autograd.Function):
    """The identity, without a call of torch; its gradient is none of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The identity."""
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        """Seven times the gradient."""
        return 7 * gradient


FOUND: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "Sevenfold, a function": lambda layer, x: Sevenfold.apply(layer(x)),  # type: ignore[no-any-return, no-untyped-call]
    "Silent, a function": lambda layer, x: Silent.apply(layer(x)),  # type: ignore[no-any-return, no-untyped-call]
    "register_hook, whose": hooked,
    "Sevenfold, a function with": lambda layer, x: F.triplet_margin_with_distance_loss(
        *(layer(x) for _ in range(3)),
        distance_function=lambda a, b: Sevenfold.apply(a - b),  # type: ignore[no-any-return, no-untyped-call]
        reduction="none",
    ),
    "CheckpointFunction, a function": lambda layer, x: checkpoint(layer, x, use_reentrant=True),
}
X, Y = torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize("found", FOUND)
def test_what_forward_adds_to_backward_is_refused(found: str) -> None:
    with pytest.raises(RequestError, match=rf"forward uses {found}.* at .*test_hooks.py:\d+, and gradients here"):
        mp.from_torch(Net(FOUND[found]), (X, Y))


def test_a_function_that_no_call_gave_away_is_found_in_the_gradients() -> None:
    x = torch.ones(2, requires_grad=True)
    check_gradients([x, x.detach(), (2 * x).sum()])
    with pytest.raises(RequestError, match="forward uses Sevenfold, a function with a backward of its own, and"):
        check_gradients([x, torch.relu(Sevenfold.apply(3 * x) + x).sum()])  # type: ignore[no-untyped-call]


def test_hooks_of_a_module_and_of_a_parameter_are_refused() -> None:
    module = Net(lambda layer, x: layer(x))
    kept = module.layer.register_full_backward_hook(lambda *_: None)
    with pytest.raises(RequestError, match="BackwardHookFunction"):
        mp.from_torch(module, (X, Y))
    kept.remove()
    module.layer.weight.register_hook(lambda gradient: 0 * gradient)
    with pytest.raises(RequestError, match=r"parameter 'layer.weight' has a hook"):
        mp.from_torch(module, (X, Y))


def test_a_checkpoint_that_adds_nothing_is_imported() -> None:
    graph = mp.from_torch(Net(lambda layer, x: checkpoint(layer, x, use_reentrant=False)), (X, Y))
    assert [node.name for node in graph.nodes] == ["layer", "cross_entropy_loss"]


PATCHABLE = (torch.Tensor, torch.autograd.Function, F)


def attributes() -> list[dict[str, int]]:
    return [{name: id(value) for name, value in vars(holder).items()} for holder in PATCHABLE]


def test_torch_is_as_it_was_while_a_module_is_imported() -> None:
    """What another thread sees of torch meanwhile, and what it may do: hooks, and functions of its own."""
    before, inside = attributes(), []

    def elsewhere() -> list[float]:
        x = torch.ones(2, requires_grad=True)
        y = Sevenfold.apply(x)  # type: ignore[no-untyped-call]
        y.register_hook(lambda gradient: 10 * gradient)
        y.sum().backward()
        found: list[float] = [] if x.grad is None else x.grad.tolist()
        return found

    def then(layer: nn.Module, x: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as pool:
            inside.append((attributes(), pool.submit(elsewhere).result()))
        return layer(x)  # type: ignore[no-any-return]

    mp.from_torch(Net(then), (X, Y))
    assert attributes() == before
    for seen, gradient in inside:
        assert seen == before
        assert gradient == [70.0, 70.0]
    assert inside
