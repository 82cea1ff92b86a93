"""Samples: random operands that fit a factor rule, for the prover."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from maniple.operators.rule import Rule

if TYPE_CHECKING:
    from maniple.operators.pattern import Dimension, Pattern
    from maniple.operators.rule import Shape, Window
    from maniple.operators.user_operator import Definition

__all__: list[str] = []

_EXTENTS = (1, 2, 3, 5)


def samples(definition: Definition, count: int, seed: int = 0) -> list[tuple[torch.Tensor | None, ...]]:
    """Operands of a user's operator: each factor of 1, 2, 3 or 5 elements, optional operands there or not.

    Args:
        definition: The operator's.
        count: How many choices of operands.
        seed: Of all choices.
    """
    chance = torch.Generator().manual_seed(seed)
    found: list[tuple[torch.Tensor | None, ...]] = []
    for number in range(count):
        # A rule with dots has one more dimension there each time; they are the same for all operands.
        dots = tuple(f"d{axis}" for axis in range(number % 3 + 1))
        rule = Rule.parse(
            definition.text, definition.halos, sizes=definition.sizes, ellipsis=dots, reduce=definition.reduce
        )
        extents, shapes = _shapes(rule, chance)
        if definition.examples is not None:
            found.append(tuple(definition.examples(extents, chance)))
            continue
        operands = []
        for pattern, shape in zip(rule.operands, shapes, strict=True):
            absent = pattern.optional and int(torch.randint(2, (), generator=chance)) == 0
            operands.append(None if absent else torch.randn(shape, generator=chance, dtype=torch.float64))
        found.append(tuple(operands))
    return found


def _shapes(rule: Rule, chance: torch.Generator) -> tuple[dict[str, int], list[Shape]]:
    """An extent for every factor, and the shapes that the operands then have."""
    extents = {factor.name: _draw(_EXTENTS, chance) for factor in rule.factors} | dict(rule.sizes)
    windows = {(place, axis): window for place, axis, _, window in rule.windows}
    rows: dict[tuple[int, int], int] = {}
    for (place, axis), window in windows.items():
        # The input's rows decide the output's.
        rows[place, axis] = _rows(window, chance)
        name = rule.operands[place].dimensions[axis].halo
        if name is not None:
            extents[name] = window.output_extent(rows[place, axis])
    return extents, [_shape(pattern, place, extents, rows) for place, pattern in enumerate(rule.operands)]


def _rows(window: Window, chance: torch.Generator) -> int:
    return max(1, window.least_extent) + _draw((0, 1, 2, 4), chance)


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
