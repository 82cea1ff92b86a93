"""Operators: what a node of a graph computes, said once for shapes, splits, costs and kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, final

from maniple.operators.rule import Rule, Shape
from maniple.operators.tile import Tile
from maniple.regions.error import RequestError

if TYPE_CHECKING:
    from torch import Tensor

FLOAT_DTYPES = ("float32", "float64")


@final
@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """A parameter that an operator brings along.

    Args:
        name: ``"weight"`` or ``"bias"``.
        shape: As torch.nn has it.
        fan_in: Inputs of one output element; the bound of the initial values is 1/sqrt(fan_in).
    """

    name: str
    shape: Shape
    fan_in: int


@final
@dataclass(frozen=True, slots=True)
class BackwardReads:
    """What an operator's backward reads besides the result's gradient.

    Args:
        operands: The operands, by place.
        result: Whether the result itself.
        saved: The saved regions, by place.
    """

    operands: tuple[int, ...] = ()
    result: bool = False
    saved: tuple[int, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Cost:
    """An amount (floating-point operations, or bytes) of forward and of backward of one tile."""

    forward: int
    backward: int


@final
@dataclass(frozen=True, slots=True)
class TileContext:
    """What a kernel is bound to besides its tensors.

    Args:
        tile: The tile.
        extents: Every factor's name and whole extent, in rule order.
        operator: The operator, for its attributes.
        cores: The cores that the processor owns.
    """

    tile: Tile
    extents: tuple[tuple[str, int], ...]
    operator: AbstractOperator
    cores: int = 1

    def extent(self, factor: str) -> int:
        """The whole extent of a factor."""
        return dict(self.extents)[factor]


class BindForward(Protocol):
    """Binds a forward kernel to tensors."""

    def __call__(
        self, context: TileContext, operands: tuple[Tensor | None, ...], result: Tensor, saved: tuple[Tensor, ...]
    ) -> Callable[[], None]:
        """A function that computes the tile each time that it is called.

        The tensors stay where they are between calls; they may be strided views. The result and every saved tensor are
        written entirely. Called with grad mode disabled.

        Args:
            context: The tile.
            operands: One per operand, of the tile's operand rect; None where that is None.
            result: Of the tile's result rect: this tile's contribution.
            saved: One per saved region.
        """
        ...


class BindBackward(Protocol):
    """Binds a backward kernel to tensors."""

    def __call__(
        self,
        context: TileContext,
        result_gradient: Tensor | None,
        operands: tuple[Tensor | None, ...],
        result: Tensor | None,
        saved: tuple[Tensor, ...],
        operand_gradients: tuple[Tensor | None, ...],
    ) -> Callable[[], None]:
        """A function that computes the tile's contributions to the operands' gradients each time that it is called.

        Args:
            context: The tile.
            result_gradient: Of the tile's result rect; None for the loss itself (1).
            operands: One per operand; None where ``backward_reads`` does not name it or the tile does not use it.
            result: The result where ``backward_reads`` names it, or None.
            saved: One per saved region.
            operand_gradients: Written entirely: one per operand, of the tile's gradient rect (its operand rect is
                accepted as well); None where it is not wanted.
        """
        ...


@final
@dataclass(frozen=True, slots=True)
class Kernels:
    """The pair of binders of an operator."""

    bind_forward: BindForward
    bind_backward: BindBackward


class AbstractOperator(ABC):
    """An operator: a frozen value of attributes.

    Subclasses are final frozen dataclasses whose fields are the attributes (int, bool or tuples of int), named as
    torch.nn names them.
    """

    __slots__ = ()

    name: ClassVar[str]
    backward_reads: ClassVar[BackwardReads]
    differentiable: ClassVar[tuple[int, ...]]

    @abstractmethod
    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The factor rule for operands of those shapes (None: absent).

        Raises:
            RequestError: No rule fits operands of those ranks.
        """

    @abstractmethod
    def parameters(self) -> tuple[ParameterSpec, ...]:
        """The parameters, in torch.nn's order; they are the last operands."""

    @abstractmethod
    def result_dtype(self, dtypes: tuple[str | None, ...], where: str) -> str:
        """The result's dtype.

        Args:
            dtypes: Of every operand; None: absent.
            where: Whom messages name.

        Raises:
            RequestError: An operand's dtype does not fit.
        """

    @abstractmethod
    def flops(self, tile: Tile) -> Cost:
        """Floating-point operations of one tile."""

    @abstractmethod
    def kernels(self) -> Kernels:
        """The kernels; imports torch."""

    @final
    def bytes_touched(self, tile: Tile, itemsize: int) -> Cost:
        """Bytes that forward and backward of one tile read and write, were every element touched once.

        Args:
            tile: The tile.
            itemsize: Bytes of one element (of all operands alike).
        """
        operands = [0 if rect is None else rect.volume for rect in tile.operand_rects]
        saved = [rect.volume for rect in tile.saved_rects]
        reads = self.backward_reads
        forward = sum(operands) + sum(saved) + tile.result_rect.volume
        backward = sum(operands[place] for place in reads.operands) + sum(saved[place] for place in reads.saved)
        backward += tile.result_rect.volume * (2 if reads.result else 1)
        backward += sum(operands[place] for place in self.differentiable if place < len(operands))
        return Cost(forward * itemsize, backward * itemsize)


def float_dtype(dtypes: tuple[str | None, ...], where: str) -> str:
    """The one float dtype that all present operands have.

    Raises:
        RequestError: An operand is no float, or two operands differ.
    """
    present = [dtype for dtype in dtypes if dtype is not None]
    for dtype in present:
        if dtype not in FLOAT_DTYPES:
            raise RequestError(f"{where}: expected operands of dtype {' or '.join(FLOAT_DTYPES)}, got {dtype}")
        if dtype != present[0]:
            raise RequestError(f"{where}: expected operands of one dtype, got {present[0]} and {dtype}")
    return present[0]
