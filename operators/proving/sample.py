"""Samples: random operands that fit a factor rule, for the prover.

| samples | extents |
|---|---|
| short ones | 1, 2, 3 or 5 of every factor; of a halo's, the fewest rows that its window fits and a few more |
| long ones | 9, 23, 64 and 257 of one factor at a time, or 4 windows where these are more; 1 to 3 of the others |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch

from maniple.operators.rules.rule import Rule
from maniple.operators.rules.window import Halo

if TYPE_CHECKING:
    from maniple.operators.proving.user_operator import Definition
    from maniple.operators.rules.pattern import Dimension, Pattern
    from maniple.operators.rules.rule import Shape, Window

__all__: list[str] = []

Operands = tuple[torch.Tensor | None, ...]

_EXTENTS = (1, 2, 3, 5)
_BESIDE = (1, 2, 3)
LENGTHS = (9, 23, 64, 257)
WINDOWS = 4


@final
@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Long operands.

    Args:
        long: The factor that has many more elements than the others.
        operands: What the operator is run on.
    """

    long: str
    operands: Operands


def samples(definition: Definition, count: int, seed: int = 0) -> list[Operands]:
    """Short operands of a user's operator: each factor of 1, 2, 3 or 5 elements, optional operands there or not.

    Args:
        definition: The operator's.
        count: How many choices of operands.
        seed: Of all choices.
    """
    chance = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        # A rule with dots has one more dimension there each time; they are the same for all operands.
        rule = _rule(definition, number % 3 + 1)
        extents = {factor.name: _draw(_EXTENTS, chance) for factor in rule.factors} | dict(rule.sizes)
        more = {factor: _draw((0, 1, 2, 4), chance) for _, _, factor, _ in rule.windows}
        found.append(_operands(definition, rule, extents, more, chance))
    return found


def long_samples(definition: Definition, seed: int = 0) -> Iterator[Sample]:
    """Long operands: one factor after the other of many elements, the shortest first.

    A body that reaches beyond its halo, or is another one beyond some extent, is right on short operands. Which extents
    it takes to see that, nobody knows: so they are several times the window, and more than a body is likely to reach.

    Args:
        definition: The operator's.
        seed: Of all choices.
    """
    chance = torch.Generator().manual_seed(seed)
    rule = _rule(definition, 2)
    given = dict(rule.sizes)
    windows = {factor: window for _, _, factor, window in rule.windows}
    for factor in rule.factors:
        if factor.name in given:
            continue
        least = WINDOWS * windows[factor.name].reach + 1 if factor.name in windows else 1
        for length in (*LENGTHS[:-1], max(LENGTHS[-1], least)):
            extents = {other.name: _draw(_BESIDE, chance) for other in rule.factors} | {factor.name: length} | given
            more = {name: _draw((0, 1, 2), chance) for name in windows}
            if factor.name in windows:
                more[factor.name] = length * _stride(windows[factor.name])
            yield Sample(factor.name, _operands(definition, rule, extents, more, chance))


def _rule(definition: Definition, dots: int) -> Rule:
    """The rule, its dots standing for some dimensions."""
    names = tuple(f"d{axis}" for axis in range(dots))
    return Rule.parse(
        definition.text, definition.halos, sizes=definition.sizes, ellipsis=names, reduce=definition.reduce
    )


def _operands(
    definition: Definition, rule: Rule, extents: dict[str, int], more: dict[str, int], chance: torch.Generator
) -> Operands:
    """Operands of some extents.

    Args:
        definition: The operator's.
        rule: Its rule.
        extents: Of every factor; a halo's follows from the rows of its operand, which decide it.
        more: The input rows of every halo's factor beyond the fewest.
        chance: Draws the values.
    """
    rows: dict[tuple[int, int], int] = {}
    first: dict[str, int] = {}
    for place, axis, factor, window in rule.windows:
        extent = first.get(factor)
        rows[place, axis] = _rows(window, more[factor]) if extent is None else _rows_for(window, extent)
        first.setdefault(factor, window.output_extent(rows[place, axis]))
    extents = {**extents, **first}
    if definition.examples is not None:
        return tuple(definition.examples(extents, chance))
    found = []
    for place, pattern in enumerate(rule.operands):
        absent = pattern.optional and int(torch.randint(2, (), generator=chance)) == 0
        shape = _shape(pattern, place, extents, rows)
        found.append(None if absent else torch.randn(shape, generator=chance, dtype=torch.float64))
    return tuple(found)


def _rows(window: Window, more: int) -> int:
    """The fewest input rows that a window fits, and some more."""
    return max(1, window.least_extent) + more


def _stride(window: Window) -> int:
    """The input rows between the windows of neighbouring output rows."""
    return window.stride if isinstance(window, Halo) else 1


def _rows_for(window: Window, extent: int) -> int:
    """The fewest input rows of another operand that give so many output rows, or as many as fit."""
    rows = max(1, window.least_extent)
    while window.output_extent(rows) < extent:
        rows += 1
    return rows


def _shape(pattern: Pattern, place: int, extents: dict[str, int], rows: dict[tuple[int, int], int]) -> Shape:
    return tuple(
        rows[place, axis] if dimension.halo is not None else _extent(dimension, extents)
        for axis, dimension in enumerate(pattern.dimensions)
    )


def _extent(dimension: Dimension, extents: dict[str, int]) -> int:
    extent = 1 if dimension.terms else dimension.extent
    for term in dimension.terms:
        extent *= extents[term.factor]
    return extent


def _draw(choices: Sequence[int], chance: torch.Generator) -> int:
    return choices[int(torch.randint(len(choices), (), generator=chance))]
