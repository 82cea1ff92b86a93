"""The optimizer: stochastic gradient descent as an update task on each block of a parameter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, final

from maniple.process.error import RequestError

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True, slots=True)
class SGD:
    """torch.optim.SGD: ``buf = momentum*buf + (grad + weight_decay*w)``; ``w -= lr*buf``.

    A momentum buffer starts at zero, which equals torch's (where the first step sets it to the gradient) because
    dampening is 0.

    Args:
        lr: The learning rate, >= 0.
        momentum: >= 0.
        weight_decay: >= 0.
        dampening: 0; others are not built.
        nesterov: ``w -= lr*(grad + momentum*buf)``; needs momentum.

    Raises:
        RequestError: A value out of range.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        for name in ("lr", "momentum", "weight_decay", "dampening"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
                raise RequestError(f"SGD.{name}: expected a finite number >= 0, got {value!r}")
        if self.dampening != 0:
            raise RequestError(f"SGD.dampening: only 0 is built, got {self.dampening}")
        if self.nesterov not in (False, True) or (self.nesterov and self.momentum == 0):
            raise RequestError(f"SGD.nesterov: expected False, or True with momentum > 0; got {self.nesterov!r}")

    @property
    def state_names(self) -> tuple[str, ...]:
        """The state that a parameter has: each of its shape and dtype, zero at first."""
        return ("momentum",) if self.momentum else ()

    @property
    def flops(self) -> int:
        """The operations that the update of one element counts for."""
        return 4

    def bind_update(
        self, parameter: Tensor, gradient: Tensor, states: tuple[Tensor, ...], cores: int
    ) -> Callable[[], None]:
        """A function that updates a block in place each time that it is called.

        One fused pass where the block is contiguous and the processor has one core, torch's operations otherwise.

        Args:
            parameter: The block's value; read and written.
            gradient: The block's gradient; only read.
            states: As ``state_names`` lists them; read and written.
            cores: The cores that the processor owns.
        """
        contiguous = all(tensor.is_contiguous() for tensor in (parameter, gradient, *states))
        if parameter.is_cuda and contiguous:
            from maniple.operators.training import descent_cuda_kernels
            from maniple.runtime.devices.cuda_kernels import current_stream

            return descent_cuda_kernels.bind_descent(self, parameter, gradient, states, current_stream())
        from maniple.operators.training.descent_kernels import bind_descent

        return bind_descent(self, parameter, gradient, states, cores)
