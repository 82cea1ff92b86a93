"""Stochastic gradient descent: an update task on each block of a parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

from maniple.operators.training.block import Block, can_share_kernel
from maniple.operators.training.loss_scale import LossScale
from maniple.operators.training.optimizer import AbstractOptimizer, State
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.training.element_rule import ElementRule

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class SGD(AbstractOptimizer):
    """torch.optim.SGD: ``buf = momentum*buf + (1-dampening)*(grad + weight_decay*w)``; ``w -= lr*buf``.

    A momentum buffer starts at zero and takes the whole gradient in the first step, as torch's does.

    Plain descent has its numbers bound into the bodies of its updates; they become numbers that enter each step when
    the first of them is set, or at once where ``enters_always`` says so or an option needs it.

    Args:
        lr: The learning rate, >= 0.
        momentum: >= 0.
        weight_decay: >= 0.
        dampening: >= 0.
        nesterov: ``w -= lr*(grad + momentum*buf)``; needs momentum, and no dampening.
        maximize: Go up the gradient.
        clip_norm: See ``AbstractOptimizer``.
        clip_value: See ``AbstractOptimizer``.
        loss_scale: See ``AbstractOptimizer``.
        groups: Arguments by pattern of names, ``{"*.bias": {"weight_decay": 0.0}}``.
        enters_always: Whether the numbers enter each step from the first on.

    Raises:
        RequestError: A value out of range.
    """

    numbers: ClassVar[tuple[str, ...]] = ("lr", "weight_decay", "momentum", "dampening")

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    maximize: bool = field(default=False, kw_only=True)
    clip_norm: float | None = field(default=None, kw_only=True)
    clip_value: float | None = field(default=None, kw_only=True)
    loss_scale: LossScale | None = field(default=None, kw_only=True)
    groups: Mapping[str, Mapping[str, Any]] | tuple[Any, ...] = field(default=(), kw_only=True)
    enters_always: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self._check()
        if self.nesterov not in (False, True) or (self.nesterov and (self.momentum == 0 or self.dampening != 0)):
            raise RequestError(
                "SGD.nesterov: expected False, or True with momentum > 0 and dampening 0; "
                f"got {self.nesterov!r} with momentum {self.momentum} and dampening {self.dampening}"
            )

    @property
    def enters(self) -> bool:
        """Whether the numbers enter each step: plain descent has them bound until one is set."""
        clips = self.clip_norm is not None or self.clip_value is not None
        return bool(self.enters_always or self.dampening or self.maximize or self.groups or clips)

    def varying(self) -> Self:
        """The same whose numbers enter each step."""
        return self if self.enters_always else replace(self, enters_always=True)

    @property
    def states(self) -> tuple[State, ...]:
        """The momentum, where there is one."""
        return (State("momentum"),) if self.momentum else ()

    def stays_zero(self, name: str) -> bool:
        """Whether it is a momentum of 0: there is no buffer."""
        return name == "momentum" and not self.momentum

    @property
    def flops(self) -> int:
        """The operations that the update of one element counts for."""
        return 4

    def bind_update(
        self,
        parameter: Tensor,
        gradient: Tensor,
        states: tuple[Tensor, ...],
        cores: int,
        row: Tensor | None = None,
        squares: Tensor | None = None,
    ) -> Callable[[], None]:
        """See ``AbstractOptimizer.bind_update``.

        One fused pass where the block is contiguous and the processor has one core or is a GPU, torch's operations
        otherwise.
        """
        block = Block(parameter, gradient, states)
        if can_share_kernel([block]):
            return self.bind_updates([block], cores, row, squares)
        from maniple.operators.training import descent_kernels

        return descent_kernels.bind_descent(self, parameter, gradient, states, cores, row, squares)

    @property
    def rule(self) -> ElementRule:
        """See ``AbstractOptimizer.rule``."""
        from maniple.operators.training.descent_kernels import RULE

        return RULE

    def bind_direction(
        self, parameter: Tensor, states: tuple[Tensor, ...], cores: int, row: Tensor, target: Tensor
    ) -> Callable[[], None]:
        """See ``AbstractOptimizer.bind_direction``; where there is no momentum nothing is known of gradients."""
        from maniple.operators.training.direction_kernels import bind_descent_direction

        return bind_descent_direction(self, parameter, states, cores, row, target)
