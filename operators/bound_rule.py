"""Bound rules: a factor rule with the extents that its operands' shapes give, cut into tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING, final

from maniple.operators.tile import Tile, split_range
from maniple.regions.error import RequestError, nearest
from maniple.regions.rectangle import Rect

if TYPE_CHECKING:
    from maniple.operators.pattern import Dimension, Pattern
    from maniple.operators.rule import Role, Rule
    from maniple.operators.window import Range, Window

Shape = tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class BoundFactor:
    """A factor with its extent.

    Args:
        name: As written in the rule.
        extent: Its elements.
        role: Its SOAP role.
        splittable: Whether its degree may be above 1: it is not written whole, and no factor of extent above 1 is
            before it in a compound.
        reduction: The factor is in no result: parts of a split fold.
    """

    name: str
    extent: int
    role: Role
    splittable: bool
    reduction: bool

    @property
    def highest_degree(self) -> int:
        """The highest legal degree: the extent, or 1 for a factor that stays whole."""
        return self.extent if self.splittable else 1


@final
@dataclass(frozen=True, slots=True)
class BoundRule:
    """A rule whose factors have extents.

    Args:
        rule: The rule.
        factors: The factors with extents, in rule order.
        operand_shapes: None for an absent operand.
        result_shapes: Of every result.
        saved_shapes: Of every saved region.
    """

    rule: Rule
    factors: tuple[BoundFactor, ...]
    operand_shapes: tuple[Shape | None, ...]
    result_shapes: tuple[Shape, ...]
    saved_shapes: tuple[Shape, ...]

    def factor(self, name: str) -> BoundFactor:
        """The factor of that name.

        Raises:
            RequestError: There is none; lists them.
        """
        for factor in self.factors:
            if factor.name == name:
                return factor
        names = [factor.name for factor in self.factors]
        raise RequestError(f"rule '{self.rule.text}' has no factor '{name}'{nearest(name, names)}")

    def extents(self) -> tuple[tuple[str, int], ...]:
        """Every factor's name and extent, in rule order."""
        return tuple((factor.name, factor.extent) for factor in self.factors)

    def cuts(self, pattern: Pattern) -> tuple[str | None, ...]:
        """The factor whose split cuts each dimension of a tensor; None for a dimension that every tile uses whole.

        Of a compound it is the first factor of more than one element.
        """
        extents = dict(self.extents())
        return tuple(_cut(dimension, extents)[0] for dimension in pattern.dimensions)

    def folds(self, result: int, degrees: Mapping[str, int]) -> str | None:
        """The operation by which the tiles of a split fold into a result; None where each writes a part of its own.

        Args:
            result: The result's place.
            degrees: The parts of every factor; 1 where it is not named.
        """
        pattern = self.rule.results[result]
        for factor in self.factors:
            if factor.name not in pattern.factors and min(degrees.get(factor.name, 1), factor.extent) > 1:
                return self.rule.fold(factor.name)
        return None

    def degrees(self, degrees: Mapping[str, int]) -> tuple[int, ...]:
        """The degree of every factor in rule order, 1 where none is given.

        Raises:
            RequestError: An unknown factor, a degree below 1, or a split of a whole factor.
        """
        for name, degree in degrees.items():
            factor = self.factor(name)
            if degree < 1:
                raise RequestError(f"degree of factor '{name}': expected an integer >= 1, got {degree}")
            if degree > 1 and not factor.splittable:
                raise RequestError(
                    f"factor '{name}' of '{self.rule.text}' stays whole: expected degree 1, got {degree}"
                )
        return tuple(degrees.get(factor.name, 1) for factor in self.factors)

    def tiles(self, degrees: Mapping[str, int]) -> tuple[Tile, ...]:
        """The tiles of a split, row-major over the factors in rule order.

        A degree above the extent gives trailing empty tiles; they are kept.

        Args:
            degrees: The parts of every factor; 1 where it is not named.

        Raises:
            RequestError: See ``degrees``.
        """
        return _tiles(self, self.degrees(degrees))


def bind(rule: Rule, shapes: tuple[Shape | None, ...], operator: str) -> BoundRule:
    """The rule with the extents that shapes give; see ``Rule.bind``."""
    if len(shapes) != len(rule.operands):
        raise RequestError(f"{operator}: expected {len(rule.operands)} operands ({rule.text}), got {len(shapes)}")
    extents = dict(rule.sizes)
    for place, (pattern, shape) in enumerate(zip(rule.operands, shapes, strict=True)):
        if shape is not None:
            _measure(rule, place, shape, extents, operator)
        elif not pattern.optional:
            raise RequestError(f"{operator}: operand {place} of '{rule.text}' is required and absent")
    for pattern in (*rule.operands, *rule.results):
        if missing := [name for name in pattern.factors if name not in extents and not pattern.optional]:
            raise RequestError(f"{operator}: nothing gives the extent of factor '{missing[0]}' of '{rule.text}'")
    held = _held(rule, extents)
    factors = tuple(
        BoundFactor(f.name, extents[f.name], f.role, not f.whole and f.name not in held, f.reduction)
        for f in rule.factors
        if f.name in extents
    )
    results = tuple(_extent_of(pattern, extents) for pattern in rule.results)
    return BoundRule(rule, factors, shapes, results, tuple(_extent_of(pattern, extents) for _, pattern in rule.saved))


def _measure(rule: Rule, place: int, shape: Shape, extents: dict[str, int], operator: str) -> None:
    """Give the factors of one operand their extents, or raise where its shape does not agree."""
    pattern = rule.operands[place]
    windows = {axis: window for operand, axis, _, window in rule.windows if operand == place}
    if len(shape) != len(pattern.dimensions):
        raise RequestError(
            f"{operator}: operand {place} expected {len(pattern.dimensions)} dimensions ({pattern}), got shape {shape}"
        )
    for axis, (dimension, extent) in enumerate(zip(pattern.dimensions, shape, strict=True)):
        where = f"{operator}: operand {place}, dimension {axis} ({dimension})"
        if extent < 1:
            raise RequestError(f"{where}: expected an extent >= 1, got shape {shape}")
        if dimension.halo is not None:
            rows = _output_rows(windows[axis], extent, where, shape)
            _meet(extents, [dimension.halo], rows, where, shape)
        elif dimension.terms:
            _meet(extents, [term.factor for term in dimension.terms], extent, where, shape)
        elif extent != dimension.extent:
            raise RequestError(f"{where}: expected extent {dimension.extent}, got shape {shape}")


def _output_rows(window: Window, extent: int, where: str, shape: Shape) -> int:
    """The output rows of a halo dimension, or raise where the window does not fit."""
    rows = window.output_extent(extent)
    if rows < 1:
        raise RequestError(
            f"{where}: a window of {window.reach} rows with padding {window.padding} does not fit; "
            f"expected at least {window.least_extent} rows, got shape {shape}"
        )
    return rows


def _held(rule: Rule, extents: Mapping[str, int]) -> set[str]:
    """The factors that a compound keeps whole: a split of them would give parts that are no rectangles."""
    held: set[str] = set()
    for pattern in (*rule.operands, *rule.results, *(pattern for _, pattern in rule.saved)):
        for dimension in pattern.dimensions:
            names = [term.factor for term in dimension.terms]
            for place, name in enumerate(names):
                if any(extents.get(before, 1) > 1 for before in names[:place]):
                    held.add(name)
    return held


def _cut(dimension: Dimension, extents: Mapping[str, int]) -> tuple[str | None, int]:
    """The factor that cuts a dimension (None: none does), and the elements of the dimension per element of it."""
    names = [term.factor for term in dimension.terms]
    for place, name in enumerate(names):
        if extents[name] > 1 or place == len(names) - 1:
            return name, prod(extents[after] for after in names[place + 1 :])
    return None, dimension.extent


def _meet(extents: dict[str, int], names: list[str], extent: int, where: str, shape: Shape) -> None:
    """Give the one unknown factor of a dimension its extent, or raise where the dimension does not agree."""
    known = prod(extents.get(name, 1) for name in names)
    unknown = [name for name in names if name not in extents]
    written = " * ".join(names)
    if not unknown and known != extent:
        raise RequestError(f"{where}: expected {written} = {known}, got {extent} (shape {shape})")
    if len(unknown) > 1:
        raise RequestError(f"{where}: nothing gives the extents of {', '.join(unknown)} (shape {shape})")
    if extent % known:
        raise RequestError(f"{where}: expected {written} to be a multiple of {known}, got {extent} (shape {shape})")
    for name in unknown:
        extents[name] = extent // known


def _extent_of(pattern: Pattern, extents: Mapping[str, int]) -> Shape:
    """The shape that a pattern without halos has."""
    return tuple(
        prod(extents[term.factor] for term in dimension.terms) if dimension.terms else dimension.extent
        for dimension in pattern.dimensions
    )


@lru_cache(maxsize=4096)
def _tiles(bound: BoundRule, degrees: tuple[int, ...]) -> tuple[Tile, ...]:
    """See ``BoundRule.tiles``."""
    rule = bound.rule
    names = tuple(factor.name for factor in bound.factors)
    splits = [split_range(f.extent, degree) for f, degree in zip(bound.factors, degrees, strict=True)]
    gathered = tuple(factor.name for factor in rule.factors if factor.gathered)
    tiles = []
    for index in product(*(range(degree) for degree in degrees)):
        ranges = tuple(split[part] for split, part in zip(splits, index, strict=True))
        cutter = _Cutter(bound, dict(zip(names, ranges, strict=True)))
        reads: list[Rect | None] = []
        gradients: list[Rect | None] = []
        for place, (pattern, shape) in enumerate(zip(rule.operands, bound.operand_shapes, strict=True)):
            used = shape is not None and (pattern.joins is None or index[names.index(pattern.joins)] == 0)
            reads.append(cutter.rect(pattern, shape, place) if shape is not None and used else None)
            gradients.append(cutter.rect(pattern, shape, place, gradient=True) if shape is not None and used else None)
        results = tuple(
            cutter.rect(pattern, shape) for pattern, shape in zip(rule.results, bound.result_shapes, strict=True)
        )
        saved = tuple(
            cutter.rect(pattern, shape) for (_, pattern), shape in zip(rule.saved, bound.saved_shapes, strict=True)
        )
        padding = cutter.padding()
        tiles.append(Tile(index, names, ranges, tuple(reads), tuple(gradients), results, saved, padding, gathered))
    return tuple(tiles)


class _Cutter:
    """Cuts out of tensors what one tile uses.

    Args:
        bound: The rule.
        ranges: The range of every factor.
    """

    def __init__(self, bound: BoundRule, ranges: dict[str, Range]) -> None:
        self.bound = bound
        self.ranges = ranges
        self.extents = dict(bound.extents())
        self.windows = {(place, axis): window for place, axis, _, window in bound.rule.windows}

    def rect(self, pattern: Pattern, shape: Shape, place: int = -1, *, gradient: bool = False) -> Rect:
        """What the tile uses of a tensor.

        Args:
            pattern: The tensor's.
            shape: The tensor's.
            place: The operand's place; no operand has -1.
            gradient: Whether what the tile contributes to the tensor's gradient is asked for.
        """
        low, high = [], []
        for axis, (dimension, extent) in enumerate(zip(pattern.dimensions, shape, strict=True)):
            if dimension.halo is not None:
                first, last = self._rows(self.windows[place, axis], dimension.halo, extent, gradient=gradient)
            else:
                name, minor = _cut(dimension, self.extents)
                first, last = self.ranges[name] if name is not None else (0, 1)
                first, last = first * minor, last * minor
            low.append(first)
            high.append(last)
        return Rect(tuple(low), tuple(high))

    def _rows(self, window: Window, factor: str, extent: int, *, gradient: bool) -> Range:
        """What the tile uses of a halo dimension."""
        rows = self.ranges[factor]
        if rows[0] >= rows[1]:
            return 0, 0
        if gradient:
            return window.gradient_window(rows, extent, self.extents[factor])
        return window.window(rows, extent)[0]

    def padding(self) -> tuple[tuple[int, int], ...]:
        """The rows that the tile adds to, or cuts off, every halo dimension."""
        found = []
        for place, axis, factor, window in self.bound.rule.windows:
            shape, rows = self.bound.operand_shapes[place], self.ranges[factor]
            used = shape is not None and rows[0] < rows[1]
            found.append(window.window(rows, shape[axis])[1] if shape is not None and used else (0, 0))
        return tuple(found)
