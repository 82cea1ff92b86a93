"""Muon: descent of matrices along their momentum, with its singular values brought near one.

K. Jordan et al., Muon: an optimizer for hidden layers in neural networks, 2024; J. Liu et al., Muon is scalable for LLM
training, 2025, for `match_rms_adamw`. The values are brought there by polynomials in the matrix, in bfloat16, as
torch.optim.Muon has them: the same operations in the same order, so that both round alike.

A step reads a matrix whole, so its home is one block; other parameters need a group with another optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod, sqrt
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from maniple.operators.training.loss_scale import LossScale
from maniple.operators.training.optimizer import EITHER, AbstractOptimizer, State
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.training.parameter import Model

__all__: list[str] = []

Coefficients = tuple[float, float, float]
MOST_ROUNDS = 99
"""As many rounds torch takes at most."""
RATES: Mapping[str, Callable[[int, int], float]] = {
    "original": lambda rows, columns: sqrt(max(1, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * sqrt(max(rows, columns)),
}
"""By torch's names what the rate is multiplied by."""


@final
@dataclass(frozen=True, slots=True)
class Muon(AbstractOptimizer):
    """torch.optim.Muon: ``w -= lr*weight_decay*w``; ``w -= lr*ratio*orthogonal(momentum)``, of matrices alone.

    Args:
        lr: The learning rate, >= 0.
        weight_decay: >= 0.
        momentum: What the mean of gradients keeps, in [0, 1].
        nesterov: Step from the mean of the gradient and the mean.
        ns_coefficients: The polynomial of each round.
        eps: The least norm that a matrix is divided by, >= 0.
        ns_steps: The rounds, below 100.
        adjust_lr_fn: ``original`` or ``match_rms_adamw``: by what the rate is multiplied; None: as ``original``.
        clip_norm: See ``AbstractOptimizer``.
        clip_value: See ``AbstractOptimizer``.
        loss_scale: See ``AbstractOptimizer``.
        groups: Arguments, or another optimizer, by pattern of names: ``{"*.bias|embed.*": mp.optim.AdamW(lr=3e-4)}``.

    Raises:
        RequestError: A value out of range.
    """

    numbers: ClassVar[tuple[str, ...]] = ("lr", "weight_decay", "momentum", "eps")
    whole: ClassVar[bool] = True

    lr: float = 1e-3
    weight_decay: float = 0.1
    momentum: float = 0.95
    nesterov: bool = True
    ns_coefficients: Coefficients = (3.4445, -4.7750, 2.0315)
    eps: float = 1e-7
    ns_steps: int = 5
    adjust_lr_fn: str | None = None
    clip_norm: float | None = field(default=None, kw_only=True)
    clip_value: float | None = field(default=None, kw_only=True)
    loss_scale: LossScale | None = field(default=None, kw_only=True)
    groups: Mapping[str, Mapping[str, Any] | AbstractOptimizer] | tuple[Any, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        self._check()
        given: object = self.ns_coefficients
        numbers = tuple(given) if isinstance(given, tuple | list) else ()
        if len(numbers) != 3 or not all(isinstance(each, int | float) and np.isfinite(each) for each in numbers):
            raise RequestError(f"Muon.ns_coefficients: expected three finite numbers, got {given!r}")
        object.__setattr__(self, "ns_coefficients", numbers)
        rounds: object = self.ns_steps
        if isinstance(rounds, bool) or not isinstance(rounds, int) or not 0 <= rounds <= MOST_ROUNDS:
            raise RequestError(f"Muon.ns_steps: expected a whole number from 0 to {MOST_ROUNDS}, got {rounds!r}")
        if self.nesterov not in (False, True):
            raise RequestError(f"Muon.nesterov: expected False or True, got {self.nesterov!r}")
        if self.adjust_lr_fn is not None and self.adjust_lr_fn not in RATES:
            told = nearest(str(self.adjust_lr_fn), [*RATES])
            raise RequestError(f"Muon.adjust_lr_fn: expected {' or '.join(RATES)}, got {self.adjust_lr_fn!r}{told}")

    @property
    def states(self) -> tuple[State, ...]:
        """The mean of gradients."""
        return (State("momentum"),)

    @property
    def flops(self) -> int:
        """The operations that an element counts for beside the products."""
        return 8

    def work(self, extents: Sequence[Any]) -> Any:
        """In each round the product of the matrix with itself, the square of that, and their product; see above."""
        if len(extents) != 2:
            return self.flops * prod(extents)
        less, more = np.minimum(*extents), np.maximum(*extents)
        return self.ns_steps * (4 * less * less * more + 2 * less**3) + self.flops * less * more

    def check_parameter(self, name: str, shape: Sequence[int]) -> None:
        """Refuse what is no matrix."""
        if len(shape) != 2:
            raise RequestError(
                f"Muon: {name}: expected a matrix, got shape {tuple(shape)}; give such parameters an optimizer of "
                "their own: groups={mp.optim.non_matrices(graph): mp.optim.AdamW(...)}"
            )

    def bind_update(
        self,
        parameter: Tensor,
        gradient: Tensor,
        states: tuple[Tensor, ...],
        cores: int,
        row: Tensor | None = None,
        squares: Tensor | None = None,
    ) -> Callable[[], None]:
        """See ``AbstractOptimizer.bind_update``; torch's operations, which may use several cores."""
        del cores
        from maniple.operators.operator.host_memory import in_host_memory
        from maniple.operators.training.clipping import Clipping, bounded_by_torch, factor_there, on_host, scale

        if row is None:
            raise RequestError("Muon: an update needs the numbers of the step")
        (mean,), limits, ratio = states, Clipping(self).limits, self._ratio(parameter)

        def update() -> None:
            _, lr, decay, momentum, eps = on_host(row).tolist()
            factor = scale(float(on_host(squares)[0]), limits[0], limits[2])
            slope = bounded_by_torch(gradient, factor, limits[1])
            mean.lerp_(slope, 1 - momentum)
            ahead = slope.lerp_(mean, momentum) if self.nesterov else mean
            found = orthogonal(ahead, self.ns_coefficients, self.ns_steps, eps)
            parameter.mul_(1 - lr * decay).add_(found, alpha=-lr * ratio)

        def on_device() -> None:  # the same with numbers that stay there
            _, lr, decay, momentum, eps = row.unbind()
            slope = bounded_by_torch(gradient, factor_there(squares, limits), limits[1])
            mean.lerp_(slope, (1 - momentum).to(mean.dtype))
            ahead = slope.lerp_(mean, momentum.to(mean.dtype)) if self.nesterov else mean
            found = orthogonal(ahead, self.ns_coefficients, self.ns_steps, eps.bfloat16())
            parameter.mul_(1 - lr * decay).sub_(found.to(parameter.dtype) * (lr * ratio))

        return update if in_host_memory(parameter) else on_device

    def bind_direction(
        self, parameter: Tensor, states: tuple[Tensor, ...], cores: int, row: Tensor, target: Tensor
    ) -> Callable[[], None]:
        """See ``AbstractOptimizer.bind_direction``: the gradient that is expected leaves the mean as it is."""
        del cores
        from maniple.operators.training.clipping import on_host

        (mean,), ratio = states, self._ratio(parameter)

        def direct() -> None:
            _, lr, decay, _, eps = on_host(row).tolist()
            target.copy_(orthogonal(mean, self.ns_coefficients, self.ns_steps, eps)).mul_(lr * ratio)
            target.add_(parameter, alpha=lr * decay)

        return direct

    def _ratio(self, parameter: Tensor) -> float:
        rows, columns = parameter.shape
        return RATES[self.adjust_lr_fn or "original"](rows, columns)


def orthogonal(matrix: Tensor, coefficients: Coefficients, rounds: int, eps: Tensor | float) -> Tensor:
    """A matrix of the same singular vectors, with singular values of about one, in bfloat16.

    Args:
        matrix: the matrix; only read.
        coefficients: a, b, c of ``a x + b x**3 + c x**5``, what a round makes of each singular value.
        rounds: how often.
        eps: the least norm that it is divided by.
    """
    import torch

    a, b, c = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    found = matrix.to(torch.bfloat16, copy=True)
    found = found.T if tall else found
    found.div_(found.norm().clamp(min=eps))
    for _ in range(rounds):
        gram = found @ found.T
        found = torch.addmm(found, torch.addmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found.T if tall else found


def non_matrices(graph: Model) -> str:
    """The pattern of the names of all trained parameters that are no matrices, for a group of `Muon`.

    Args:
        graph: the graph that has them.
    """
    return EITHER.join(
        _literal(tensor.name) for tensor in graph.parameters if tensor.requires_grad and len(tensor.shape) != 2
    )


def _literal(name: str) -> str:
    """The pattern that a name alone matches."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
