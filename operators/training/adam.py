"""Adam and AdamW: descent along the mean of gradients over the root of the mean of their squares.

D. Kingma, J. Ba, Adam: a method for stochastic optimization, ICLR 2015; I. Loshchilov, F. Hutter, Decoupled weight
decay regularization, ICLR 2019; S. Reddi, S. Kale, S. Kumar, On the convergence of Adam and beyond, ICLR 2018, for
amsgrad.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, final

from maniple.operators.training.block import Block, can_share_kernel
from maniple.operators.training.loss_scale import LossScale
from maniple.operators.training.optimizer import AbstractOptimizer, State
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.training.element_rule import ElementRule

__all__: list[str] = []

NUMBERS = ("lr", "weight_decay", "beta1", "beta2", "eps")


class AdaptiveMoments(AbstractOptimizer):
    """What Adam and AdamW share; they differ in where the decay goes."""

    __slots__ = ()

    numbers: ClassVar[tuple[str, ...]] = NUMBERS
    pairs: ClassVar[Mapping[str, tuple[str, ...]]] = {"betas": ("beta1", "beta2")}
    decoupled: ClassVar[bool]
    """Whether the decay is of the value itself, and no part of the gradient."""
    betas: tuple[float, float]
    amsgrad: bool
    maximize: bool

    @property
    def states(self) -> tuple[State, ...]:
        """The mean of gradients, that of their squares, and with ``amsgrad`` the most that the latter was."""
        names = ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if self.amsgrad else ()))
        return tuple(State(name) for name in names)

    @property
    def flops(self) -> int:
        """The operations that the update of one element counts for."""
        return 14

    def bind_update(
        self,
        parameter: Tensor,
        gradient: Tensor,
        states: tuple[Tensor, ...],
        cores: int,
        row: Tensor | None = None,
        squares: Tensor | None = None,
    ) -> Callable[[], None]:
        """See ``AbstractOptimizer.bind_update``; one fused pass where the block is contiguous, on one core or a GPU."""
        if row is None:
            raise RequestError(f"{type(self).__name__}: an update needs the numbers of the step")
        block = Block(parameter, gradient, states)
        if can_share_kernel([block]):
            return self.bind_updates([block], cores, row, squares)
        from maniple.operators.training import adam_kernels

        if cores == 1 and not parameter.is_cuda and all(tensor.is_contiguous() for tensor in block.tensors):
            return adam_kernels.RULE.bind(self, block, row, squares)
        return adam_kernels.bind_torch(self, block.tensors, row, squares)

    @property
    def rule(self) -> ElementRule:
        """See ``AbstractOptimizer.rule``."""
        from maniple.operators.training.adam_kernels import RULE

        return RULE

    def bind_direction(
        self, parameter: Tensor, states: tuple[Tensor, ...], cores: int, row: Tensor, target: Tensor
    ) -> Callable[[], None]:
        """See ``AbstractOptimizer.bind_direction``."""
        from maniple.operators.training.direction_kernels import bind_adam_direction

        return bind_adam_direction(self, parameter, states, cores, row, target)

    def _check_own(self) -> None:
        """Check what both have."""
        kind = type(self).__name__
        betas: object = self.betas
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise RequestError(f"{kind}.betas: expected two numbers, got {betas!r}")
        object.__setattr__(self, "betas", tuple(betas))
        self._check()
        for name in ("amsgrad", "maximize"):
            if getattr(self, name) not in (False, True):
                raise RequestError(f"{kind}.{name}: expected False or True, got {getattr(self, name)!r}")
        if max(self.betas) >= 1:
            raise RequestError(f"{kind}.betas: expected two numbers in [0, 1), got {self.betas}")


@final
@dataclass(frozen=True, slots=True)
class Adam(AdaptiveMoments):
    """torch.optim.Adam: the decay is a part of the gradient.

    Args:
        lr: The learning rate, >= 0.
        betas: How much the means of gradients and of their squares keep, in [0, 1).
        eps: Added to the root, >= 0.
        weight_decay: >= 0.
        amsgrad: Divide by the most that the mean of squares was.
        maximize: Go up the gradient.
        clip_norm: See ``AbstractOptimizer``.
        clip_value: See ``AbstractOptimizer``.
        loss_scale: See ``AbstractOptimizer``.
        groups: Arguments by pattern of names, ``{"*.bias": {"weight_decay": 0.0}}``.

    Raises:
        RequestError: A value out of range.
    """

    decoupled: ClassVar[bool] = False

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False
    maximize: bool = field(default=False, kw_only=True)
    clip_norm: float | None = field(default=None, kw_only=True)
    clip_value: float | None = field(default=None, kw_only=True)
    loss_scale: LossScale | None = field(default=None, kw_only=True)
    groups: Mapping[str, Mapping[str, Any]] | tuple[Any, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        self._check_own()


@final
@dataclass(frozen=True, slots=True)
class AdamW(AdaptiveMoments):
    """torch.optim.AdamW: ``w -= lr*weight_decay*w`` before the step of Adam.

    Args:
        lr: The learning rate, >= 0.
        betas: How much the means of gradients and of their squares keep, in [0, 1).
        eps: Added to the root, >= 0.
        weight_decay: >= 0.
        amsgrad: Divide by the most that the mean of squares was.
        maximize: Go up the gradient.
        clip_norm: See ``AbstractOptimizer``.
        clip_value: See ``AbstractOptimizer``.
        loss_scale: See ``AbstractOptimizer``.
        groups: Arguments by pattern of names, ``{"*.bias": {"weight_decay": 0.0}}``.

    Raises:
        RequestError: A value out of range.
    """

    decoupled: ClassVar[bool] = True

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2
    amsgrad: bool = False
    maximize: bool = field(default=False, kw_only=True)
    clip_norm: float | None = field(default=None, kw_only=True)
    clip_value: float | None = field(default=None, kw_only=True)
    loss_scale: LossScale | None = field(default=None, kw_only=True)
    groups: Mapping[str, Mapping[str, Any]] | tuple[Any, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        self._check_own()
