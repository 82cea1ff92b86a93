"""Factor rules: one einsum-like string says what an operator's split means for every operand.

``"b i y~ x~, o i u! v!, [o]@i -> b o y x"`` is a convolution. From the string follow shapes, the legal degrees, the
SOAP role of every factor (Jia et al., Beyond Data and Model Parallelism, section 4), and what each tile reads and
writes.
The grammar is in docs/factor-rules.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Literal, final

from maniple.operators.pattern import Pattern, check_patterns, expand_ellipsis, parse_pattern, parse_patterns, refuse
from maniple.operators.tile import Halo, Range, Tile, split_range
from maniple.regions.error import RequestError, nearest
from maniple.regions.rectangle import Rect

__all__ = ["BoundFactor", "BoundRule", "Factor", "Halo", "Role", "Rule", "Saved", "Tile", "split_range"]

Role = Literal["sample", "attribute", "parameter", "reduction"]
Shape = tuple[int, ...]
Split = Range | None


@final
@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of an operator's iteration space.

    Args:
        name: As written in the rule.
        role: Its SOAP role. ``sample`` is dimension 0 of the first operand, in no parameter; a factor that is in no
            result has role ``reduction`` unless it is the sample factor (of a loss).
        whole: The factor is never split.
        reduction: The factor is not in the result: parts of a split add up.
    """

    name: str
    role: Role
    whole: bool
    reduction: bool


@final
@dataclass(frozen=True, slots=True)
class BoundFactor:
    """A factor with its extent."""

    name: str
    extent: int
    role: Role
    splittable: bool
    reduction: bool

    @property
    def highest_degree(self) -> int:
        """The highest legal degree: the extent, or 1 for a whole factor."""
        return self.extent if self.splittable else 1


@final
@dataclass(frozen=True, slots=True)
class Saved:
    """A region that forward leaves for backward and that is neither an operand nor the result.

    Args:
        name: E.g. ``"indices"``.
        dimensions: Its dimensions in the rule's factors, e.g. ``"b c y x"``.
        dtype: E.g. ``"int64"``; empty: the result's.
    """

    name: str
    dimensions: str
    dtype: str = ""


@final
@dataclass(frozen=True, slots=True)
class Rule:
    """A parsed factor rule.

    Args:
        text: The rule as written (dots expanded).
        operands: The pattern of every operand.
        result: The pattern of the result.
        factors: In order of appearance in the result, then in the operands.
        halos: The window of every halo factor, in order of appearance.
        sizes: Extents that no operand's dimension gives by itself (parts of a compound).
        saved: The saved regions and their patterns.
    """

    text: str
    operands: tuple[Pattern, ...]
    result: Pattern
    factors: tuple[Factor, ...]
    halos: tuple[tuple[str, Halo], ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    saved: tuple[tuple[Saved, Pattern], ...] = ()

    @staticmethod
    def parse(
        text: str,
        halos: Mapping[str, Halo] | None = None,
        *,
        parameters: Sequence[int] = (),
        sizes: Mapping[str, int] | None = None,
        saved: Sequence[Saved] = (),
        ellipsis: tuple[str, ...] | None = None,
    ) -> Rule:
        """The rule that ``text`` writes.

        Args:
            text: E.g. ``"b k, n k, [n]@k -> b n"``.
            halos: The window of every factor written ``y~``.
            parameters: The operands that are parameters.
            sizes: Extents of factors that appear in compounds only.
            saved: The saved regions.
            ellipsis: The factors that ``...`` stands for.

        Raises:
            RequestError: The text is not a rule, or a halo is missing or not used; the message shows the place.
        """
        items = tuple(sorted((halos or {}).items())), tuple(parameters), tuple(sorted((sizes or {}).items()))
        return _parse(text, *items, tuple(saved), ellipsis)

    def bind(self, shapes: Sequence[Shape | None], operator: str = "operator") -> BoundRule:
        """The rule with the extents that the operands' shapes give.

        Args:
            shapes: The shape of every operand; None for an absent optional one.
            operator: Whom messages name.

        Raises:
            RequestError: A shape does not fit; says the operator, what was expected and what came.
        """
        return _bind(self, tuple(None if shape is None else tuple(shape) for shape in shapes), operator)


@final
@dataclass(frozen=True, slots=True)
class BoundRule:
    """A rule whose factors have extents.

    Args:
        rule: The rule.
        factors: The factors with extents, in rule order.
        operand_shapes: None for an absent operand.
        result_shape: Of the result.
        saved_shapes: Of every saved region.
    """

    rule: Rule
    factors: tuple[BoundFactor, ...]
    operand_shapes: tuple[Shape | None, ...]
    result_shape: Shape
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


@lru_cache(maxsize=4096)
def _parse(
    text: str,
    halos: tuple[tuple[str, Halo], ...],
    parameters: tuple[int, ...],
    sizes: tuple[tuple[str, int], ...],
    saved: tuple[Saved, ...],
    ellipsis: tuple[str, ...] | None,
) -> Rule:
    """See ``Rule.parse``."""
    text = expand_ellipsis(text, ellipsis)
    operands, result = parse_patterns(text)
    terms = [term for pattern in (*operands, result) for dimension in pattern.dimensions for term in dimension.terms]
    check_patterns(text, operands, result, {name for name, _ in halos})
    names = tuple(dict.fromkeys((*result.factors, *(term.factor for term in terms))))
    whole = {term.factor for term in terms if term.whole}
    in_parameters = {factor for place in parameters for factor in operands[place].factors}
    leading = operands[0].factors[0] if operands[0].dimensions else None
    factors = []
    for name in names:
        reduction = name not in result.factors
        role: Role = "attribute"
        if name == leading and name not in in_parameters:
            role = "sample"
        elif reduction:
            role = "reduction"
        elif name in in_parameters:
            role = "parameter"
        factors.append(Factor(name, role, name in whole, reduction))
    windows = dict(halos)
    halo_names = dict.fromkeys(term.factor for term in terms if term.halo)
    patterns = tuple((item, parse_pattern(item.dimensions)) for item in saved)
    for item, pattern in patterns:
        if unknown := [name for name in pattern.factors if name not in names]:
            refuse(
                item.dimensions, item.dimensions.find(unknown[0]), f"saved '{item.name}' names no factor of '{text}'"
            )
    return Rule(text, operands, result, tuple(factors), tuple((n, windows[n]) for n in halo_names), sizes, patterns)


def _bind(rule: Rule, shapes: tuple[Shape | None, ...], operator: str) -> BoundRule:
    """See ``Rule.bind``."""
    if len(shapes) != len(rule.operands):
        raise RequestError(f"{operator}: expected {len(rule.operands)} operands ({rule.text}), got {len(shapes)}")
    extents = dict(rule.sizes)
    halos = dict(rule.halos)
    for place, (pattern, shape) in enumerate(zip(rule.operands, shapes, strict=True)):
        if shape is None:
            if not pattern.optional:
                raise RequestError(f"{operator}: operand {place} of '{rule.text}' is required and absent")
            continue
        if len(shape) != len(pattern.dimensions):
            raise RequestError(
                f"{operator}: operand {place} expected {len(pattern.dimensions)} dimensions ({pattern}), "
                f"got shape {shape}"
            )
        for axis, (dimension, extent) in enumerate(zip(pattern.dimensions, shape, strict=True)):
            where = f"{operator}: operand {place}, dimension {axis} ({dimension})"
            if extent < 1:
                raise RequestError(f"{where}: expected an extent >= 1, got shape {shape}")
            name = dimension.halo
            if name is not None:
                window = halos[name]
                rows = window.output_extent(extent)
                if rows < 1:
                    raise RequestError(
                        f"{where}: a window of {window.reach} rows with padding {window.padding} does not fit; "
                        f"expected at least {window.reach - 2 * window.padding} rows, got shape {shape}"
                    )
                _meet(extents, [name], rows, where, shape)
            else:
                _meet(extents, [term.factor for term in dimension.terms], extent, where, shape)
    for pattern in rule.operands:
        if missing := [name for name in pattern.factors if name not in extents and not pattern.optional]:
            raise RequestError(f"{operator}: nothing gives the extent of factor '{missing[0]}' of '{rule.text}'")
    factors = tuple(BoundFactor(f.name, extents[f.name], f.role, not f.whole, f.reduction) for f in rule.factors)
    saved = tuple(_extent_of(pattern, extents) for _, pattern in rule.saved)
    return BoundRule(rule, factors, shapes, _extent_of(rule.result, extents), saved)


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
    return tuple(prod(extents[term.factor] for term in dimension.terms) for dimension in pattern.dimensions)


def _pattern_rect(
    pattern: Pattern, shape: Shape, bound: BoundRule, ranges: dict[str, Range], *, gradient: bool = False
) -> Rect:
    """What a tile with those ranges uses of a tensor (``gradient``: what it contributes to the tensor's gradient)."""
    halos = dict(bound.rule.halos)
    low, high = [], []
    for dimension, extent in zip(pattern.dimensions, shape, strict=True):
        name = dimension.terms[0].factor
        first, last = ranges[name]
        if dimension.halo is None:
            minor = extent // bound.factor(name).extent
            first, last = first * minor, last * minor
        elif first < last and gradient:
            first, last = halos[name].gradient_window((first, last), extent, bound.factor(name).extent)
        elif first < last:
            first, last = halos[name].window((first, last), extent)[0]
        else:
            first = last = 0
        low.append(first)
        high.append(last)
    return Rect(tuple(low), tuple(high))


@lru_cache(maxsize=4096)
def _tiles(bound: BoundRule, degrees: tuple[int, ...]) -> tuple[Tile, ...]:
    """See ``BoundRule.tiles``."""
    rule = bound.rule
    names = tuple(factor.name for factor in bound.factors)
    splits = [split_range(f.extent, degree) for f, degree in zip(bound.factors, degrees, strict=True)]
    extents = dict(_halo_extents(bound))
    tiles = []
    for index in product(*(range(degree) for degree in degrees)):
        ranges = tuple(split[part] for split, part in zip(splits, index, strict=True))
        named = dict(zip(names, ranges, strict=True))
        reads: list[Rect | None] = []
        gradients: list[Rect | None] = []
        for pattern, shape in zip(rule.operands, bound.operand_shapes, strict=True):
            joined = pattern.joins is None or index[names.index(pattern.joins)] == 0
            used = shape is not None and joined
            reads.append(_pattern_rect(pattern, shape, bound, named) if shape is not None and used else None)
            gradients.append(
                _pattern_rect(pattern, shape, bound, named, gradient=True) if shape is not None and used else None
            )
        saved = tuple(
            _pattern_rect(pattern, shape, bound, named)
            for (_, pattern), shape in zip(rule.saved, bound.saved_shapes, strict=True)
        )
        padding = tuple(
            halo.window(named[name], extents[name])[1] if named[name][0] < named[name][1] else (0, 0)
            for name, halo in rule.halos
        )
        result = _pattern_rect(rule.result, bound.result_shape, bound, named)
        tiles.append(Tile(index, names, ranges, tuple(reads), tuple(gradients), result, saved, padding))
    return tuple(tiles)


def _halo_extents(bound: BoundRule) -> list[tuple[str, int]]:
    """The input extent of every halo dimension."""
    return [
        (dimension.halo, extent)
        for pattern, shape in zip(bound.rule.operands, bound.operand_shapes, strict=True)
        if shape is not None
        for dimension, extent in zip(pattern.dimensions, shape, strict=True)
        if dimension.halo is not None
    ]
