"""Dependence: which elements of its operands a part of an operator's results depends on, found by changing them.

A tile is given what its rule says, and nothing else. So nothing else may matter: all other elements are replaced by
large numbers of both signs, and the whole operator's results must stay as they are where the tile lies. That shows what
a comparison of splits misses, such as a row that matters only where it is large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch

if TYPE_CHECKING:
    from maniple.operators.rules.bound_rule import BoundRule
    from maniple.operators.rules.tile import Tile
    from maniple.regions.rectangle import Rect

__all__: list[str] = []

Operands = Sequence[torch.Tensor | None]
Run = Callable[[Operands], Mapping[str, torch.Tensor]]

LARGE = 1000.0
TOLERANCE = 1e-9
_LISTED = 6


@final
@dataclass(frozen=True, slots=True, eq=False)
class Stray:
    """A result that depends on what its tile is not given.

    Args:
        what: The result.
        text: What it depends on, as messages say it.
        expected: The result's values in the tile.
        found: The same, once what the tile is not given was changed.
    """

    what: str
    text: str
    expected: torch.Tensor
    found: torch.Tensor


def stray(
    bound: BoundRule, degrees: Mapping[str, int], operands: Operands, whole: Mapping[str, torch.Tensor], run: Run
) -> Stray | None:
    """The first tile of a split whose results depend on elements that it is not given; None where there is none.

    Args:
        bound: The rule.
        degrees: Of the factors that are split.
        operands: Of the whole operator.
        whole: Its results, by name.
        run: Computes them from other operands.
    """
    for tile in bound.tiles(degrees):
        for sign in () if tile.is_empty else (1, -1):
            changed = [_change(value, rect, sign) for value, rect in zip(operands, tile.operand_rects, strict=True)]
            found = _differs(bound, tile, degrees, whole, run(changed))
            if found is not None:
                name, expected, value = found
                text = _explain(bound, tile, degrees, operands, whole, run, sign)
                return Stray(f"{name} of the tile at {tile.result_rects[_place(name)]}", text, expected, value)
    return None


def _change(
    value: torch.Tensor | None, rect: Rect | None, sign: int, only: tuple[int, int] | None = None
) -> torch.Tensor | None:
    """An operand with large numbers outside a rectangle.

    Args:
        value: The operand.
        rect: What stays as it is.
        sign: Of the first large number; they alternate.
        only: A dimension and the place along it that alone is changed; None: everything outside is.
    """
    if value is None or rect is None or not value.is_floating_point():
        return value
    outside = torch.ones(value.shape, dtype=torch.bool)
    outside[rect.slices((0,) * value.ndim)] = False
    if only is not None:
        chosen = torch.zeros_like(outside)
        chosen.select(only[0], only[1]).fill_(True)
        outside &= chosen
    signs = torch.where(torch.arange(value.numel()).reshape(value.shape) % 2 == 0, sign, -sign)
    return torch.where(outside, LARGE * signs * (1 + value.abs()), value)


def _differs(
    bound: BoundRule,
    tile: Tile,
    degrees: Mapping[str, int],
    whole: Mapping[str, torch.Tensor],
    found: Mapping[str, torch.Tensor],
) -> tuple[str, torch.Tensor, torch.Tensor] | None:
    """The first result that the tile writes alone and that is another one."""
    for name, value in whole.items():
        if bound.folds(_place(name), degrees) is None:
            where = tile.result_rects[_place(name)].slices((0,) * value.ndim)
            if not _same(found[name][where], value[where]):
                return name, value[where], found[name][where]
    return None


def _explain(
    bound: BoundRule,
    tile: Tile,
    degrees: Mapping[str, int],
    operands: Operands,
    whole: Mapping[str, torch.Tensor],
    run: Run,
    sign: int,
) -> str:
    """What a tile depends on: the operand, the dimension, and the places along it."""
    lines = []
    for place, (value, rect) in enumerate(zip(operands, tile.operand_rects, strict=True)):
        if value is None or rect is None or not value.is_floating_point():
            continue
        for axis, (low, high) in enumerate(zip(rect.lo, rect.hi, strict=True)):
            rows = [
                row
                for row in range(value.shape[axis])
                if not low <= row < high
                and _differs(
                    bound, tile, degrees, whole, run(_with(operands, place, _change(value, rect, sign, (axis, row))))
                )
            ]
            if rows:
                shown = ", ".join(map(str, rows[:_LISTED])) + (f", ... {rows[-1]}" if len(rows) > _LISTED else "")
                lines.append(f"operand {place} is given at {low}:{high} of dimension {axis}, and read at {shown} too")
    return "; ".join(lines) or "several elements together"


def _with(operands: Operands, place: int, value: torch.Tensor | None) -> list[torch.Tensor | None]:
    return [value if at == place else operand for at, operand in enumerate(operands)]


def _place(name: str) -> int:
    """The place of a result that is called so."""
    return int(name.rpartition(" ")[2])


def _same(value: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether values that no change may reach are the same; what was NaN stays NaN."""
    if not value.is_floating_point() or not value.numel():
        return torch.equal(value, expected)
    most = max(1.0, float(expected.nan_to_num(0, 0, 0).abs().max()))
    return torch.allclose(value, expected, rtol=0, atol=TOLERANCE * most, equal_nan=True)
