"""Accesses: what the parts of a launch use of one region, however its operator is cut."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, final

from maniple.operators.rules.tile import split_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maniple.operators.rules.pattern import Pattern
    from maniple.operators.rules.rule import BoundRule, Shape
    from maniple.operators.rules.window import Range
    from maniple.runtime.schedule.launch import Requirement

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class Uses:
    """What the parts of every split of an operator use of one tensor, in elements.

    Args:
        together: what they use together at least, an element that several use counted once. A window that steps over
            rows reads them where the operator is whole, and not where it is cut.
        least: what the smallest of those uses that use it at all; 0 where a part can be beside the tensor.
        volume: of the tensor.
        first_only: whether only the first part of a factor uses the tensor, and the factor can be split: a bias.
    """

    together: int
    least: int
    volume: int
    first_only: bool = False

    @property
    def by_every_part(self) -> bool:
        """Whether every part of every split uses some of the tensor."""
        return self.least > 0 and not self.first_only

    @property
    def wholly(self) -> bool:
        """Whether the parts of every split use each element of the tensor."""
        return self.together == self.volume


@final
@dataclass(frozen=True, slots=True)
class Access:
    """A requirement of a launch, and what the parts of the launch use of its region.

    Args:
        requirement: as the launch has it where one processor runs it whole.
        uses: what its parts use.
    """

    requirement: Requirement
    uses: Uses

    @property
    def together_bytes(self) -> int:
        """Bytes that the parts use together at least."""
        return self.uses.together * self.requirement.region.itemsize

    @property
    def least_bytes(self) -> int:
        """Bytes that the smallest part uses at least."""
        return 0 if self.uses.first_only else self.uses.least * self.requirement.region.itemsize


@lru_cache(maxsize=8192)
def operand_uses(bound: BoundRule, place: int, *, gradient: bool = False) -> Uses:
    """What the parts of an operator read of an operand, or contribute to its gradient.

    Args:
        bound: the operator's rule.
        place: the operand's.
        gradient: whether what they contribute to its gradient is meant.
    """
    pattern, shape = bound.rule.operands[place], bound.operand_shapes[place] or ()
    uses = _uses(bound, pattern, shape, place, gradient=gradient)
    if pattern.joins is None or bound.factor(pattern.joins).highest_degree == 1:
        return uses
    return replace(uses, first_only=True)


@lru_cache(maxsize=8192)
def result_uses(bound: BoundRule, place: int) -> Uses:
    """What the parts of an operator write of a result."""
    return _uses(bound, bound.rule.results[place], bound.result_shapes[place], -1, gradient=False)


@lru_cache(maxsize=8192)
def saved_uses(bound: BoundRule, number: int) -> Uses:
    """What the parts of an operator write of a saved region."""
    return _uses(bound, bound.rule.saved[number][1], bound.saved_shapes[number], -1, gradient=False)


def entire(volume: int, least: int = 1) -> Uses:
    """The uses of what is always used wholly, in parts of at least so many elements."""
    return Uses(volume, min(least, volume), volume)


def _uses(bound: BoundRule, pattern: Pattern, shape: Shape, place: int, *, gradient: bool) -> Uses:
    together = least = 1
    for axis, extent in enumerate(shape):
        rows = list(_rows(bound, pattern, shape, axis, place, gradient=gradient))
        if rows:
            together *= _count_covered(rows)
            least *= min(high - low for low, high in rows)
        else:
            together *= extent
            least *= _smallest(bound, pattern, axis, extent)
    return Uses(together, least, prod(shape))


def _rows(
    bound: BoundRule, pattern: Pattern, shape: Shape, axis: int, place: int, *, gradient: bool
) -> Iterator[Range]:
    """What each part of the finest split uses of a dimension with a window; nothing of any other dimension.

    What a part of a coarser split uses contains what the finest parts in it use.
    """
    name = pattern.dimensions[axis].halo
    if name is not None:
        splits = tuple(
            split_range(factor.extent, factor.highest_degree if factor.name == name else 1) for factor in bound.factors
        )
        yield from bound.axis_parts(pattern, shape, axis, splits, place, gradient=gradient)[1]


def _smallest(bound: BoundRule, pattern: Pattern, axis: int, extent: int) -> int:
    """The elements of a dimension without a window that the smallest part uses."""
    name = bound.cuts(pattern)[axis]
    return extent if name is None else extent // bound.factor(name).highest_degree


def _count_covered(rows: list[Range]) -> int:
    """The elements of the union of some ranges."""
    covered, end = 0, -1
    for low, high in sorted(rows):
        if high > max(low, end):
            covered += high - max(low, end)
            end = high
    return covered


def slot_uses(bound: BoundRule, slot: tuple[str, int]) -> Uses:
    """What the parts of an operator use of a slot of one of its launches."""
    kind, place = slot
    if kind == "operand":
        return operand_uses(bound, place)
    if kind == "operand_gradient":
        return operand_uses(bound, place, gradient=True)
    if kind == "saved":
        return saved_uses(bound, place)
    return entire(2, 2) if kind == "clock" else result_uses(bound, place)
