"""Layout: operators that give their operand's elements in another order, or some of them, or more around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.library.elementwise.aten import Aten, AtenLinear, Slot
from maniple.operators.operator.axes import activation_axes, present_shape
from maniple.operators.operator.operator import BackwardReads
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import Halo, Rule, Shape
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.operator.operator import TileContext

END = 2**63 - 1
"""What torch writes for the end of a slice that has none."""


def permute_axes(order: Sequence[int], dtype: str) -> AtenLinear:
    """``"b s c -> b c s"``: the dimensions in another order."""
    names = activation_axes(len(order))
    text = f"{' '.join(names)} -> {' '.join(names[axis] for axis in order)}"
    return AtenLinear(f"permute(x0, {list(order)})", text, (dtype,))


def slice_axis(shape: Shape, axis: int, start: int, stop: int, step: int, dtype: str) -> AtenLinear:
    """``"b c~ -> b c"``: every step-th element of a range along one dimension, a window of one row."""
    names = activation_axes(len(shape))
    window: Slot = (names[axis], 1, step, -start, stop - shape[axis])
    call = f"slice.Tensor(x0, {axis}, 0, {END}, {step})"
    return AtenLinear(call, f"{_halo(names, axis)} -> {' '.join(names)}", (dtype,), windows=(window,))


def concatenate(shapes: Sequence[Shape], axis: int, dtype: str) -> AtenLinear:
    """``"b c~, b c~ -> b c"``: tensors one after the other along a dimension, which may be split anywhere."""
    names = activation_axes(len(shapes[0]))
    total = sum(shape[axis] for shape in shapes)
    windows: list[Slot] = []
    start = 0
    for shape in shapes:
        windows.append((names[axis], 1, 1, start, total - start - shape[axis]))
        start += shape[axis]
    operands = ", ".join(f"x{place}" for place in range(len(shapes)))
    text = f"{', '.join([_halo(names, axis)] * len(shapes))} -> {' '.join(names)}"
    return AtenLinear(f"cat([{operands}], {axis})", text, (dtype,), (), tuple(windows))


def _halo(names: Sequence[str], axis: int) -> str:
    return " ".join(f"{name}~" if place == axis else name for place, name in enumerate(names))


def gather(shape: Shape, index: Shape, axis: int, dtype: str) -> Aten:
    """``"b 7, b i -> b i"``: for every element of an index, the element of a line that it names.

    Dimensions beside the line that are shorter in the index stay whole.
    """
    names = activation_axes(len(shape))
    source, picked = [], []
    for place, (name, extent, count) in enumerate(zip(names, shape, index, strict=True)):
        split = place == axis or extent == count
        source.append(name if split and place != axis else str(extent))
        picked.append(("i" if place == axis else name) if split else str(count))
    rule = f"{' '.join(source)}, {' '.join(picked)} -> {' '.join(picked)}"
    return Aten(f"gather(x0, {axis}, x1)", rule, (dtype,))


@final
@dataclass(frozen=True, slots=True)
class Pad(TorchOperator):
    """A constant around a tensor: ``"b c~ -> b c"``, the halo one row wide with rows added on both sides.

    Args:
        pads: For every dimension the elements added before and after it; negative: cut off.
        dtype: The operand's, for tiles that lie beside it.
        value: The constant.
    """

    pads: tuple[tuple[int, int], ...]
    dtype: str
    value: float = 0.0

    name: ClassVar[str] = "pad"
    backward_reads: ClassVar[BackwardReads] = BackwardReads()
    flops_per_point: ClassVar[int] = 0

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        shape = present_shape(shapes[0], self.name)
        if len(shape) != len(self.pads):
            raise RequestError(f"pad: expected {len(self.pads)} dimensions, got shape {shape}")
        names = activation_axes(len(shape))
        halos = {
            name: Halo(1, 1, before, 1, after)
            for name, (before, after) in zip(names, self.pads, strict=True)
            if (before, after) != (0, 0)
        }
        text = " ".join(f"{name}~" if name in halos else name for name in names)
        return Rule.parse(f"{text} -> {' '.join(names)}", halos)

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        """See ``TorchOperator.forward``; a tile beside the operand has the constant alone."""
        import torch

        from maniple.runtime.storage.copy_kernels import torch_dtype

        (x,) = operands
        tile = context.tile
        if x is None:
            return torch.full(tile.result_rects[0].shape, self.value, dtype=torch_dtype(self.dtype))
        rows = iter(tile.padding)
        around = [next(rows) if pad != (0, 0) else pad for pad in self.pads]
        return torch.nn.functional.pad(x, [edge for pair in reversed(around) for edge in pair], value=self.value)


@final
@dataclass(frozen=True, slots=True)
class Triangle(TorchOperator):
    """torch.tril and triu: ``"b y x -> b y x"``; a tile knows its place, so both dimensions may be split.

    Args:
        rank: The operand's dimensions; the last two are the matrix.
        diagonal: The last diagonal (of an upper triangle: the first) that is kept; 0 is the main one.
        upper: Whether what lies above it is kept.
    """

    rank: int
    diagonal: int = 0
    upper: bool = False

    name: ClassVar[str] = "triangle"
    backward_reads: ClassVar[BackwardReads] = BackwardReads()

    def __post_init__(self) -> None:
        if self.rank < 2:
            raise RequestError(f"triangle: expected a matrix of at least 2 dimensions, got {self.rank}")

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        if len(present_shape(shapes[0], self.name)) != self.rank:
            raise RequestError(f"triangle: expected {self.rank} dimensions, got shape {shapes[0]}")
        return Rule.parse("... -> ...", ellipsis=activation_axes(self.rank))

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        """See ``TorchOperator.forward``."""
        (x,) = operands
        if x is None:
            raise TypeError("triangle: forward needs its operand")
        row, column = context.tile.result_rects[0].lo[-2:]
        diagonal = self.diagonal + row - column
        return x.triu(diagonal) if self.upper else x.tril(diagonal)
