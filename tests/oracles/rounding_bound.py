"""How far roundings move a loss and its gradients, in the first order, by torch in float64.

A value v that is rounded once becomes v (1 + e) with |e| <= u, half of the distance between two numbers relative to
the lower one: 2^-8 of bfloat16, 2^-11 of float16. So the roundings of all values v of a computation move what it
gives, s, by

    sum over v of ds/dv v e(v)      at most   u sum |ds/dv v|
                                    of e(v) that know nothing of each other, even from -u to u, of deviation
                                    u sqrt(1/3 sum (ds/dv v)^2)

Here s is the loss, or the gradient of it along a direction d of the parameters, and v whatever the module's calls give
and take and, of the gradient, whatever passes backward through these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

Directions = Sequence[Mapping[str, torch.Tensor]]


class Bounded(NamedTuple):
    """A number, and how it moves for every u.

    Args:
        value: the number.
        most: by how much at most.
        deviation: of errors that know nothing of each other.
    """

    value: float
    most: float
    deviation: float


class _Values(TorchFunctionMode):
    """Keeps what calls give, and what passes backward through it."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []

    def keep(self, value: torch.Tensor) -> None:
        self.kept.append(value)
        value.retain_grad()
        value.register_hook(self._passes)

    def _passes(self, gradient: torch.Tensor) -> torch.Tensor:
        if not gradient.requires_grad:
            return gradient
        passed = gradient.clone()
        passed.retain_grad()
        self.kept.append(passed)
        return passed

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for value in found if isinstance(found, tuple) else (found,):
            if isinstance(value, torch.Tensor) and value.grad_fn is not None and value.dtype == torch.float64:
                self.keep(value)
        return found


def bounded_step(
    module: nn.Module, batch: Sequence[torch.Tensor], directions: Directions
) -> tuple[Bounded, list[Bounded]]:
    """The loss of a module, and its gradients along directions, each with its bound.

    Args:
        module: gives the loss; it is made float64.
        batch: what it is given.
        directions: by parameter's name.
    """
    module.double()
    values = _Values()
    given = [each.double().requires_grad_() if each.is_floating_point() else each for each in batch]
    own = dict(module.named_parameters())
    for leaf in (*given, *own.values()):
        if leaf.requires_grad:
            leaf.register_hook(values._passes)
    with sdpa_kernel(SDPBackend.MATH):  # of which torch knows a second derivative
        with values:
            loss = module(*given)
        gradients = torch.autograd.grad(loss, list(own.values()), create_graph=True, allow_unused=True)
    leaves = [leaf for leaf in (*given, *own.values()) if leaf.requires_grad]
    kept = [*values.kept, *leaves]
    slopes = [_along(own, gradients, direction) for direction in directions]
    return _bounded(loss, kept), [_bounded(slope, kept) for slope in slopes]


def _along(
    own: Mapping[str, torch.Tensor], gradients: Sequence[torch.Tensor | None], direction: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    pairs = zip(own, gradients, strict=True)
    return sum((g * direction[name].double()).sum() for name, g in pairs if g is not None)  # type: ignore[return-value]


def _bounded(end: torch.Tensor, kept: Sequence[torch.Tensor]) -> Bounded:
    slopes = torch.autograd.grad(end, kept, retain_graph=True, allow_unused=True)
    pairs = zip(slopes, kept, strict=True)
    shares = [(slope * value.detach()).flatten() for slope, value in pairs if slope is not None]
    every = torch.cat(shares).detach()
    return Bounded(float(end.detach()), float(every.abs().sum()), float((every.square().sum() / 3).sqrt()))
