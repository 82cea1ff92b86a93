"""Bound rules: a factor rule with the extents that its operands' shapes give, cut into tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, final

from maniple.operators.rules.tile import Tile, split_range
from maniple.operators.rules.tile_table import Parts, TileTable
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from maniple.operators.rules.pattern import Dimension, Pattern
    from maniple.operators.rules.rule import Role, Rule
    from maniple.operators.rules.tile_table import Axes
    from maniple.operators.rules.window import Range, Window

Shape = tuple[int, ...]
Splits = tuple[tuple["Range", ...], ...]
"""By factor, the range of each part."""
Within = tuple[str, "Range"]
"""A factor, and a part of it, which is split by itself while other parts are other launches'."""


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
        return tuple([(factor.name, factor.extent) for factor in self.factors])

    def cuts(self, pattern: Pattern) -> tuple[str | None, ...]:
        """The factor whose split cuts each dimension of a tensor; None for a dimension that every tile uses whole.

        Of a compound it is the first factor of more than one element.
        """
        extents = dict(self.extents())
        return tuple(_cutting_factor(dimension, extents)[0] for dimension in pattern.dimensions)

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
        table = _table(self, self.degrees(degrees), None)
        return tuple(table.tiles(range(len(table.index))))

    def table(self, degrees: tuple[int, ...], within: Within | None = None) -> TileTable:
        """The tiles of a split as a table.

        Args:
            degrees: The parts of every factor, in rule order; legal ones.
            within: The part of one factor that is split; None: all of it. The tiles stay where they are in the whole.
        """
        return _table(self, degrees, within)

    def axis_parts(
        self,
        pattern: Pattern,
        shape: Shape,
        axis: int,
        splits: Splits,
        place: int,
        *,
        gradient: bool,
    ) -> tuple[int | None, list[Range]]:
        """What the parts of a factor use of one dimension of a tensor.

        Args:
            pattern: The tensor's.
            shape: The tensor's.
            axis: The dimension.
            splits: The ranges of the parts of every factor.
            place: The operand's place; no operand has -1.
            gradient: Whether what they contribute to the tensor's gradient is asked for.

        Returns:
            The place of the factor (None: every part uses all of the dimension), and what each of its parts uses.
        """
        dimension, extents = pattern.dimensions[axis], dict(self.extents())
        names = list(extents)
        if dimension.halo is not None:
            factor = names.index(dimension.halo)
            window = next(found for where, at, _, found in self.rule.windows if (where, at) == (place, axis))
            rows = [
                _rows(window, part, shape[axis], extents[dimension.halo], gradient=gradient) for part in splits[factor]
            ]
            return factor, rows
        name, minor = _cutting_factor(dimension, extents)
        if name is None:
            return None, [(0, minor)]
        return names.index(name), [(low * minor, high * minor) for low, high in splits[names.index(name)]]


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
    held = _find_held(rule, extents)
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


def _find_held(rule: Rule, extents: Mapping[str, int]) -> set[str]:
    """The factors that a compound keeps whole: a split of them would give parts that are no rectangles."""
    held: set[str] = set()
    for pattern in (*rule.operands, *rule.results, *(pattern for _, pattern in rule.saved)):
        for dimension in pattern.dimensions:
            names = [term.factor for term in dimension.terms]
            for place, name in enumerate(names):
                if any(extents.get(before, 1) > 1 for before in names[:place]):
                    held.add(name)
    return held


def _cutting_factor(dimension: Dimension, extents: Mapping[str, int]) -> tuple[str | None, int]:
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
def _table(bound: BoundRule, degrees: tuple[int, ...], within: Within | None) -> TileTable:
    """See ``BoundRule.table``."""
    rule, names = bound.rule, tuple(factor.name for factor in bound.factors)
    splits = tuple(split_range(factor.extent, degree) for factor, degree in zip(bound.factors, degrees, strict=True))
    parts = dict(zip(names, degrees, strict=True))
    operands = [*zip(rule.operands, bound.operand_shapes, strict=True)]
    if within is not None:
        place, (low, high) = names.index(within[0]), within[1]
        nested = tuple((low + first, low + last) for first, last in split_range(high - low, degrees[place]))
        splits = (*splits[:place], nested, *splits[place + 1 :])
        # The other parts are there, in other launches: results that lack the factor fold.
        parts[within[0]] = max(2, degrees[place]) if high - low < bound.factors[place].extent else degrees[place]
        if low:  # what only the first part uses, this one does not
            operands = [(p, None if p.joins == within[0] else shape) for p, shape in operands]
    found = parts_of(bound, splits, tuple(shape for _, shape in operands))
    return TileTable(found, tuple(bound.folds(result, parts) for result in range(len(rule.results))))


def parts_of(bound: BoundRule, splits: Splits, shapes: tuple[Shape | None, ...] | None = None) -> Parts:
    """What parts of factors use of every tensor, whichever splits the parts are of.

    Args:
        bound: the rule.
        splits: by factor, the ranges of the parts.
        shapes: of every operand, None for one that no part uses; by default those of the rule.
    """
    rule, names = bound.rule, tuple(factor.name for factor in bound.factors)
    operands = [*zip(rule.operands, bound.operand_shapes if shapes is None else shapes, strict=True)]
    saved = zip((pattern for _, pattern in rule.saved), bound.saved_shapes, strict=True)
    results = zip(rule.results, bound.result_shapes, strict=True)
    return Parts(
        names,
        splits,
        {
            "operand": [_axes(bound, *operand, splits, place) for place, operand in enumerate(operands)],
            "operand_gradient": [
                _axes(bound, *operand, splits, place, gradient=True) for place, operand in enumerate(operands)
            ],
            "result": [_axes(bound, *result, splits) for result in results],
            "saved": [_axes(bound, *both, splits) for both in saved],
        },
        {
            place: names.index(pattern.joins)
            for place, (pattern, shape) in enumerate(operands)
            if pattern.joins is not None and shape is not None
        },
        tuple(_padding(bound, names, splits)),
        tuple(factor.name for factor in rule.factors if factor.gathered),
    )


def _axes(
    bound: BoundRule, pattern: Pattern, shape: Shape | None, splits: Splits, place: int = -1, *, gradient: bool = False
) -> Axes | None:
    """What the parts of the factors use of each dimension of a tensor, None where it is absent."""
    if shape is None:
        return None
    return [bound.axis_parts(pattern, shape, axis, splits, place, gradient=gradient) for axis in range(len(shape))]


def _padding(
    bound: BoundRule, names: tuple[str, ...], splits: Splits
) -> Iterator[tuple[int, tuple[tuple[int, int], ...]]]:
    """The rows that the parts add to, or cut off, every halo dimension, and the place of its factor."""
    for place, axis, name, window in bound.rule.windows:
        shape, factor = bound.operand_shapes[place], names.index(name)
        yield (
            factor,
            tuple(
                (0, 0) if shape is None or low >= high else window.window((low, high), shape[axis])[1]
                for low, high in splits[factor]
            ),
        )


def _rows(window: Window, rows: Range, extent: int, output_extent: int, *, gradient: bool) -> Range:
    """What a range of output rows uses of a halo dimension."""
    if rows[0] >= rows[1]:
        return 0, 0
    return window.gradient_window(rows, extent, output_extent) if gradient else window.window(rows, extent)[0]
