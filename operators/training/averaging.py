"""Averages of weights: an optimizer that also keeps an exponential average of each parameter, at its home.

As torch.optim.swa_utils.AveragedModel has it with ``get_ema_multi_avg_fn(decay)``, updated after every step:

    step 1            ema = w
    every other step  ema = ema + (1 - decay) * (w - ema)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Self, final

from maniple.operators.training.block import Block, can_share_kernel
from maniple.operators.training.optimizer import AbstractOptimizer, State, check_number
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.training.loss_scale import LossScale

__all__: list[str] = []

EMA = "ema"
"""What the state calls the average."""


@final
@dataclass(frozen=True, slots=True)
class Averaged(AbstractOptimizer):
    """An optimizer that keeps an average of what it updates.

    Args:
        inner: What updates.
        decay: What the average keeps of itself, in [0, 1).

    Raises:
        RequestError: A decay out of range, or no optimizer.
    """

    inner: AbstractOptimizer
    decay: float = 0.999

    def __post_init__(self) -> None:
        inner: object = self.inner
        if not isinstance(inner, AbstractOptimizer) or isinstance(inner, Averaged):
            raise RequestError(f"averaged: expected an optimizer of mp.optim that keeps no average yet, got {inner!r}")
        check_number("averaged: decay", self.decay)
        if self.decay >= 1:
            raise RequestError(f"averaged: decay: expected a number in [0, 1), got {self.decay!r}")
        object.__setattr__(self, "inner", inner.varying())

    @property
    def numbers(self) -> tuple[str, ...]:  # type: ignore[override]
        """The inner optimizer's."""
        return self.inner.numbers

    @property
    def pairs(self) -> Mapping[str, tuple[str, ...]]:  # type: ignore[override]
        """The inner optimizer's."""
        return self.inner.pairs

    @property
    def whole(self) -> bool:  # type: ignore[override]
        """The inner optimizer's."""
        return self.inner.whole

    @property
    def title(self) -> str:
        """The inner optimizer's."""
        return self.inner.title

    @property
    def keeps_average(self) -> bool:
        """It does."""
        return True

    @property
    def groups(self) -> Any:
        """The inner optimizer's."""
        return self.inner.groups

    @property
    def clip_norm(self) -> float | None:  # type: ignore[override]
        """The inner optimizer's."""
        return self.inner.clip_norm

    @property
    def clip_value(self) -> float | None:  # type: ignore[override]
        """The inner optimizer's."""
        return self.inner.clip_value

    @property
    def loss_scale(self) -> LossScale | None:  # type: ignore[override]
        """The inner optimizer's."""
        return self.inner.loss_scale

    @property
    def states(self) -> tuple[State, ...]:
        """The inner optimizer's, and the average."""
        return (*self.inner.states, State(EMA))

    @property
    def flops(self) -> int:
        """The operations that the update of one element counts for."""
        return self.inner.flops + 3

    def work(self, extents: Sequence[Any]) -> Any:
        """The inner optimizer's, and the average's."""
        return self.inner.work(extents) + 3 * prod(extents)

    def check_parameter(self, name: str, shape: Sequence[int]) -> None:
        """The inner optimizer's."""
        self.inner.check_parameter(name, shape)

    def of_row(self, row: int) -> Self:
        """The average around the inner optimizer of a group."""
        return self if not self.groups else replace(self, inner=self.inner.of_row(row))

    @property
    def options_of_groups(self) -> frozenset[str]:
        """The inner optimizer's."""
        return self.inner.options_of_groups

    def arguments(self) -> dict[str, float | tuple[float, ...]]:
        """The inner optimizer's."""
        return self.inner.arguments()

    def stays_zero(self, name: str) -> bool:
        """The inner optimizer's."""
        return self.inner.stays_zero(name)

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """The same with other arguments of the inner optimizer, and without groups."""
        return replace(self, inner=self.inner.with_options(options))

    def bind_update(
        self,
        parameter: Tensor,
        gradient: Tensor,
        states: tuple[Tensor, ...],
        cores: int,
        row: Tensor | None = None,
        squares: Tensor | None = None,
    ) -> Callable[[], None]:
        """See ``AbstractOptimizer.bind_update``: the inner optimizer's, and then the average."""
        return self.bind_updates([Block(parameter, gradient, states)], cores, row, squares)

    def bind_updates(
        self, blocks: Sequence[Block], cores: int, row: Tensor | None = None, squares: Tensor | None = None
    ) -> Callable[[], None]:
        """See ``AbstractOptimizer.bind_updates``: the inner optimizer's, and then the averages."""
        import torch

        from maniple.operators.operator.host_memory import in_host_memory

        if row is None:
            raise RequestError("averaged: an update needs the number of the step")
        own = [Block(value, gradient, states[:-1]) for value, gradient, states in blocks]
        update = self.inner.bind_updates(own, cores, row, squares)
        averages = [(states[-1], value) for value, _, states in blocks]
        step, share = row, 1 - self.decay
        moved = [Block(average, value, ()) for average, value in averages]
        if can_share_kernel(moved):
            from maniple.operators.training.averaging_kernels import RULE
            from maniple.operators.training.block_cuda_kernels import bind_rule
            from maniple.runtime.devices.cuda_kernels import current_stream

            average_all = bind_rule(RULE, self, moved, row, None, current_stream())
            return lambda: (update(), average_all())[1]

        def run() -> None:
            update()
            first = float(step[0]) <= 1
            for average, value in averages:
                if first:
                    average.copy_(value)
                else:
                    average.lerp_(value, share)

        def on_device() -> None:
            """Nobody looks whether it is the first: all of the value is taken then."""
            update()
            taken = torch.where(step[0] <= 1, torch.ones_like(step[0]), share)
            for average, value in averages:
                average.lerp_(value, taken.to(average.dtype))

        return run if in_host_memory(step) else on_device

    def bind_direction(
        self, parameter: Tensor, states: tuple[Tensor, ...], cores: int, row: Tensor, target: Tensor
    ) -> Callable[[], None]:
        """The inner optimizer's."""
        return self.inner.bind_direction(parameter, states[:-1], cores, row, target)


def averaged(optimizer: AbstractOptimizer, decay: float = 0.999) -> Averaged:
    """Give an optimizer that also keeps an exponential average of each weight, which its state has as ``ema``.

    Args:
        optimizer: what updates.
        decay: what an average keeps of itself in a step, in [0, 1).

    Raises:
        RequestError: a decay out of range.
    """
    return Averaged(optimizer, decay)
