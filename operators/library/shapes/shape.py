"""Operators that change a tensor's shape and keep its elements and their order."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, final

from maniple.operators.operator.axes import activation_axes, check_at_least, present_shape
from maniple.operators.operator.operator import AbstractOperator, BackwardReads, Cost, Kernels
from maniple.operators.rules.rule import Rule, Shape
from maniple.operators.rules.tile import Tile
from maniple.operators.rules.view import Rearrangement
from maniple.process.error import RequestError


def _shape_kernels() -> Kernels:
    """The kernels that flatten and reshape share."""
    from maniple.operators.library.shapes.shape_kernels import KERNELS

    return KERNELS


@final
@dataclass(frozen=True, slots=True)
class Flatten(AbstractOperator):
    """torch.nn.Flatten: keeps dimension 0 and joins the others: ``"b c y! x! -> b (c y! x!)"``."""

    name: ClassVar[str] = "flatten"
    backward_reads: ClassVar[BackwardReads] = BackwardReads()
    differentiable: ClassVar[tuple[int, ...] | None] = (0,)

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        shape = present_shape(shapes[0], self.name)
        if len(shape) < 2:
            raise RequestError(f"flatten: expected at least 2 dimensions, got shape {shape}")
        batch, major, *minor = activation_axes(len(shape))
        if not minor:
            return Rule.parse(f"{batch} {major} -> {batch} {major}")
        rest = " ".join([major, *(f"{name}!" for name in minor)])
        return Rule.parse(f"{batch} {rest} -> {batch} ({rest})")

    def rearrangement(self, operand: Shape, result: Shape) -> Rearrangement:
        """The same elements in another shape; see ``AbstractOperator.rearrangement``."""
        del operand
        return Rearrangement(shape=result)

    def flops(self, tile: Tile) -> Cost:  # a copy
        """See ``AbstractOperator.flops``."""
        return Cost(0, 0)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        return _shape_kernels()


@final
@dataclass(frozen=True, slots=True)
class Reshape(AbstractOperator):
    """torch.reshape that keeps dimension 0: ``"b (c d!) -> b c d!"``, by the common refinement of both shapes.

    Args:
        shape: The result's dimensions after dimension 0.
    """

    shape: tuple[int, ...]

    name: ClassVar[str] = "reshape"
    backward_reads: ClassVar[BackwardReads] = BackwardReads()
    differentiable: ClassVar[tuple[int, ...] | None] = (0,)

    def __post_init__(self) -> None:
        for extent in self.shape:
            check_at_least("reshape.shape", extent, 1)

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        """The rule above; see ``AbstractOperator.rule``."""
        before = present_shape(shapes[0], self.name)
        if not before:
            raise RequestError("reshape: expected at least 1 dimension (the samples), got a scalar")
        text, sizes = refinement(before[1:], self.shape)
        return Rule.parse(text, sizes=sizes)

    def rearrangement(self, operand: Shape, result: Shape) -> Rearrangement:
        """The same elements in another shape; see ``AbstractOperator.rearrangement``."""
        del operand
        return Rearrangement(shape=result)

    def flops(self, tile: Tile) -> Cost:  # a copy
        """See ``AbstractOperator.flops``."""
        return Cost(0, 0)

    def kernels(self) -> Kernels:
        """See ``AbstractOperator.kernels``."""
        return _shape_kernels()


def refinement(before: Shape, after: Shape) -> tuple[str, dict[str, int]]:
    """The rule text of a reshape, and the size of every factor but ``b``.

    Both shapes are cut into common factors from the major end: each factor is what is left of one side's dimension, and
    divides what is left of the other's. (6, 4) and (24,) give ``"b f0 f1! -> b (f0 f1!)"``.

    Args:
        before: The operand's dimensions after dimension 0.
        after: The result's.

    Raises:
        RequestError: The shapes have different volumes, or do not nest.
    """
    if prod(before) != prod(after):
        raise RequestError(
            f"reshape: expected {prod(before)} elements per sample (of {before}), got {prod(after)} (of {after})"
        )
    sizes: dict[str, int] = {}
    sides: tuple[list[list[str]], list[list[str]]] = ([["b"]], [["b"]])
    pending = [list(reversed(before)), list(reversed(after))]
    remaining = [1, 1]
    while any(pending) or remaining != [1, 1]:
        name = f"f{len(sizes)}"
        single = next((side for side in (0, 1) if remaining[side] == 1 and pending[side][-1:] == [1]), None)
        if single is not None:  # a dimension of extent 1 has no partner: it joins the other side's last dimension
            pending[single].pop()
            sizes[name] = 1
            sides[single].append([name])
            sides[1 - single][-1].append(name)
            continue
        for side in (0, 1):
            if remaining[side] == 1:
                remaining[side] = pending[side].pop()
                sides[side].append([])
        size = min(remaining)
        if max(remaining) % size:
            raise RequestError(
                f"reshape: the dimensions {before} and {after} do not nest; "
                f"reshape to ({prod(before)},) first, then to {after}"
            )
        sizes[name] = size
        for side in (0, 1):
            sides[side][-1].append(name)
            remaining[side] //= size
    left, right = sides
    major = {dimension[0] for dimension in left} & {dimension[0] for dimension in right}
    return f"{_text(left, major)} -> {_text(right, major)}", sizes


def _text(dimensions: list[list[str]], major: set[str]) -> str:
    """The dimensions as the grammar writes them: a factor that is not major on both sides stays whole."""
    marked = [[name if name in major else f"{name}!" for name in dimension] for dimension in dimensions]
    return " ".join(terms[0] if len(terms) == 1 else f"({' '.join(terms)})" for terms in marked)
