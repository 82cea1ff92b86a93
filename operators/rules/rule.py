"""Factor rules: one einsum-like string says what an operator's split means for every operand and result.

``"b i y~ x~, o i u! v!, [o]@i -> b o y x"`` is a convolution. From the string follow shapes, the legal degrees, the
SOAP role of every factor (Jia et al., Beyond Data and Model Parallelism, section 4), and what each tile reads, writes
and folds.
The grammar is in docs/reference/factor-rules.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, final

from maniple.operators.rules.bound_rule import BoundFactor, BoundRule, Shape, bind
from maniple.operators.rules.ellipsis import expand_ellipsis
from maniple.operators.rules.pattern import Pattern, check_patterns, parse_pattern, parse_patterns, refuse
from maniple.operators.rules.tile import Tile, split_range
from maniple.operators.rules.window import Halo, TransposedHalo, Window
from maniple.process.error import nearest

__all__ = [
    "BoundFactor",
    "BoundRule",
    "Factor",
    "Halo",
    "Role",
    "Rule",
    "Saved",
    "Shape",
    "Tile",
    "TransposedHalo",
    "Window",
    "split_range",
]

Role = Literal["sample", "attribute", "parameter", "reduction"]
Windows = Window | Sequence[Window]

_OPERATIONS = {"sum": "+", "product": "*", "min": "min", "max": "max"}


@final
@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of an operator's iteration space.

    Args:
        name: As written in the rule.
        role: Its SOAP role. ``sample`` cuts the samples of an operand and is in no parameter; another factor that is in
            no result has role ``reduction``.
        whole: The factor is never split.
        reduction: The factor is in no result: parts of a split fold.
        gathered: Values of another operand pick along the factor.
    """

    name: str
    role: Role
    whole: bool
    reduction: bool
    gathered: bool = False


@final
@dataclass(frozen=True, slots=True)
class Saved:
    """A region that forward leaves for backward and that is neither an operand nor a result.

    Args:
        name: E.g. ``"indices"``.
        dimensions: Its dimensions in the rule's factors, e.g. ``"b c y x"``.
        dtype: E.g. ``"int64"``; empty: the first result's.
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
        results: The pattern of every result.
        factors: In order of appearance in the results, then in the operands.
        windows: (operand, dimension, factor, window) of every halo, in order of appearance.
        sizes: Extents that no operand's dimension gives by itself (parts of a compound, new dimensions).
        saved: The saved regions and their patterns.
        reductions: The factors whose parts do not fold by ``+``, with the symbol of their operation.
    """

    text: str
    operands: tuple[Pattern, ...]
    results: tuple[Pattern, ...]
    factors: tuple[Factor, ...]
    windows: tuple[tuple[int, int, str, Window], ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    saved: tuple[tuple[Saved, Pattern], ...] = ()
    reductions: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def parse(
        text: str,
        halos: Mapping[str, Windows] | None = None,
        *,
        parameters: Sequence[int] = (),
        sizes: Mapping[str, int] | None = None,
        saved: Sequence[Saved] = (),
        ellipsis: tuple[str, ...] | None = None,
        shapes: Sequence[Shape | None] | None = None,
        reduce: str = "",
    ) -> Rule:
        """The rule that ``text`` writes.

        Args:
            text: E.g. ``"b k, n k, [n]@k -> b n"``.
            halos: The window of every factor written ``y~``: one for all its dimensions, or one for each of them.
            parameters: The operands that are parameters.
            sizes: Extents of factors that no dimension gives by itself.
            saved: The saved regions.
            ellipsis: The factors that ``...`` stands for.
            shapes: Of the operands, for dots that stand for different dimensions in each; see ``expand_ellipsis``.
            reduce: How the parts of a split of each factor fold into the results that lack it, e.g. ``"k:max"``; sum
                where nothing is said. One of sum, product, min and max.

        Raises:
            RequestError: The text is not a rule, or a halo is missing or not used; the message shows the place.
        """
        given = tuple(
            (name, (windows,) if isinstance(windows, Halo | TransposedHalo) else tuple(windows))
            for name, windows in sorted((halos or {}).items())
        )
        known = tuple(sorted((sizes or {}).items()))
        expanded = expand_ellipsis(text, ellipsis, shapes)
        return _parse(expanded, given, tuple(parameters), known, tuple(saved), reduce)

    def with_roles(self, parameters: Sequence[int], samples: Sequence[int | None]) -> Rule:
        """The rule with the roles that its factors have for these operands.

        Args:
            parameters: The operands that are parameters.
            samples: For every operand the dimension that counts samples, or None.
        """
        return replace(self, factors=_factors(self, set(parameters), tuple(samples)))

    def fold(self, factor: str) -> str:
        """The symbol of the operation by which parts of a split of a factor fold."""
        return dict(self.reductions).get(factor, "+")

    def bind(self, shapes: Sequence[Shape | None], operator: str = "operator") -> BoundRule:
        """The rule with the extents that the operands' shapes give.

        Args:
            shapes: The shape of every operand; None for an absent optional one.
            operator: Whom messages name.

        Raises:
            RequestError: A shape does not fit; says the operator, what was expected and what came.
        """
        return bind(self, tuple(None if shape is None else tuple(shape) for shape in shapes), operator)


@lru_cache(maxsize=4096)
def _parse(
    text: str,
    halos: tuple[tuple[str, tuple[Window, ...]], ...],
    parameters: tuple[int, ...],
    sizes: tuple[tuple[str, int], ...],
    saved: tuple[Saved, ...],
    reduce: str,
) -> Rule:
    """See ``Rule.parse``."""
    operands, results = parse_patterns(text)
    check_patterns(text, operands, results, {name for name, _ in halos}, {name for name, _ in sizes})
    patterns = tuple((item, parse_pattern(item.dimensions)) for item in saved)
    windows = _windows(text, operands, dict(halos))
    bare = Rule(text, operands, results, (), windows, sizes, patterns)
    factors = _factors(bare, set(parameters), (0, *(None for _ in operands[1:])))
    rule = replace(bare, factors=factors, reductions=_reductions(text, reduce, factors))
    _check_folds(rule)
    _check_saved(rule)
    return rule


def _windows(
    text: str, operands: tuple[Pattern, ...], halos: Mapping[str, tuple[Window, ...]]
) -> tuple[tuple[int, int, str, Window], ...]:
    """The window of every halo dimension."""
    found: list[tuple[int, int, str, Window]] = []
    seen = dict.fromkeys(halos, 0)
    for place, pattern in enumerate(operands):
        for axis, dimension in enumerate(pattern.dimensions):
            name = dimension.halo
            if name is not None:
                given = halos[name]
                found.append((place, axis, name, given[min(seen[name], len(given) - 1)]))
                seen[name] += 1
    for name, count in seen.items():
        if len(halos[name]) not in (1, count):
            refuse(text, text.find(f"{name}~"), f"expected one window for '{name}', or one for each of its dimensions")
    return tuple(found)


def _factors(rule: Rule, parameters: set[int], samples: tuple[int | None, ...]) -> tuple[Factor, ...]:
    """The factors with their roles."""
    patterns = (*rule.results, *rule.operands)
    terms = [term for pattern in patterns for dimension in pattern.dimensions for term in dimension.terms]
    produced = {name for result in rule.results for name in result.factors}
    owned = {name for place in parameters for name in rule.operands[place].factors}
    sampled = set()
    for place, axis in enumerate(samples):
        if axis is not None and axis < len(rule.operands[place].dimensions):
            sampled |= {term.factor for term in rule.operands[place].dimensions[axis].terms[:1]}
    whole = {term.factor for term in terms if term.whole}
    gathered = {term.factor for term in terms if term.gathered}
    factors = []
    for name in dict.fromkeys(term.factor for term in terms):
        role: Role = "attribute"
        if name in sampled - owned:
            role = "sample"
        elif name not in produced:
            role = "reduction"
        elif name in owned:
            role = "parameter"
        factors.append(Factor(name, role, name in whole, name not in produced, name in gathered))
    return tuple(factors)


def _reductions(text: str, reduce: str, factors: tuple[Factor, ...]) -> tuple[tuple[str, str], ...]:
    """The operations of ``reduce``, other than sum, by factor."""
    known = [factor.name for factor in factors]
    found = []
    for item in reduce.split():
        name, colon, word = item.partition(":")
        place = reduce.find(item)
        if not colon or name not in known:
            refuse(reduce, place, f"expected 'factor:operation' with a factor of '{text}'{nearest(name, known)}")
        if word not in _OPERATIONS:
            refuse(reduce, place + len(name) + 1, f"unknown reduction {word!r}{nearest(word, list(_OPERATIONS))}")
        if word != "sum":
            found.append((name, _OPERATIONS[word]))
    return tuple(found)


def _check_folds(rule: Rule) -> None:
    """Refuse a result into which two factors would fold by different operations."""
    for pattern in rule.results:
        absent = [f.name for f in rule.factors if not f.whole and f.name not in pattern.factors]
        other = next((name for name in absent if rule.fold(name) != rule.fold(absent[0])), None)
        if other is not None:
            refuse(
                rule.text,
                rule.text.find(other),
                f"'{absent[0]}' and '{other}' fold into result '{pattern}' by different operations; "
                f"write '{other}!', or let the result keep one of them",
            )


def _check_saved(rule: Rule) -> None:
    """Refuse a saved region of unknown factors."""
    names = [factor.name for factor in rule.factors]
    for item, pattern in rule.saved:
        for name in pattern.factors:
            if name not in names:
                place = item.dimensions.find(name)
                refuse(item.dimensions, place, f"saved '{item.name}' names no factor of '{rule.text}'")
