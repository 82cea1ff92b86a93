"""Rule texts from shapes: the factors that operands and results of a torch operator share."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from maniple.operators.operator.axes import activation_axes
from maniple.operators.rules.rule import Shape

Pattern = list[str]


def broadcast(result: Shape, shapes: Sequence[Shape]) -> tuple[list[Pattern], Pattern]:
    """The patterns of a pointwise operator: dimensions align at the end, those of one element repeat.

    Args:
        result: Its shape.
        shapes: Of every operand.
    """
    axes = list(activation_axes(len(result))) if result else []
    operands = []
    for shape in shapes:
        offset = len(result) - len(shape)
        operands.append(
            [
                axes[offset + axis] if extent == result[offset + axis] else str(extent)
                for axis, extent in enumerate(shape)
            ]
        )
    return operands, axes


def text(operands: Sequence[Pattern], results: Sequence[Pattern]) -> str:
    """The rule of patterns."""
    return f"{', '.join(' '.join(o) for o in operands)} -> {', '.join(' '.join(r) for r in results)}".rstrip(" ")


def whole(shape: Shape) -> Pattern:
    """The pattern of a tensor that every tile uses whole."""
    return [str(extent) for extent in shape]


def reshape_rule(before: Shape, after: Shape) -> tuple[str, tuple[tuple[str, int], ...]]:
    """The rule of a reshape, and the sizes that it needs: the common refinement of both shapes.

    (4, 6, 8) to (24, 8) is ``"b f1 f2 -> (b f1) f2"``. Dimensions that do not nest stay whole: (6, 4) to (8, 3) is
    ``"6 4 -> 8 3"``. Dimensions of one element have no factor.

    Args:
        before: The operand's shape.
        after: The result's, of the same volume.
    """
    left, right = _Side(before), _Side(after)
    sizes: dict[str, int] = {}
    count = 0
    for old, new in _groups(before, after):
        factors = _refine([before[axis] for axis in old], [after[axis] for axis in new])
        if factors is None:
            for side, axes in ((left, old), (right, new)):
                for axis in axes:
                    side.terms[axis] = [str(side.shape[axis])]
            continue
        for extent, place, other in factors:
            name = "b" if not count and old[place] == new[other] == 0 else f"f{count}"
            count += 1
            left.terms[old[place]].append(name)
            right.terms[new[other]].append(name)
            if len(left.terms[old[place]]) > 1:
                sizes[name] = extent
    return text([left.pattern()], [right.pattern()]), tuple(sizes.items())


class _Side:
    """One side of a reshape: the terms of every dimension."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.terms: list[list[str]] = [[] for _ in shape]

    def pattern(self) -> Pattern:
        return [_dimension(terms) for terms in self.terms]


def _dimension(terms: list[str]) -> str:
    if not terms:
        return "1"
    return terms[0] if len(terms) == 1 else f"({' '.join(terms)})"


def _groups(before: Shape, after: Shape) -> list[tuple[list[int], list[int]]]:
    """The least runs of dimensions of more than one element that hold the same elements on both sides."""
    left = [axis for axis, extent in enumerate(before) if extent != 1]
    right = [axis for axis, extent in enumerate(after) if extent != 1]
    groups = []
    while left and right:
        old, new = [left.pop(0)], [right.pop(0)]
        while (small := prod(before[axis] for axis in old)) != (large := prod(after[axis] for axis in new)):
            if small < large:
                old.append(left.pop(0))
            else:
                new.append(right.pop(0))
        groups.append((old, new))
    return groups


def _refine(before: list[int], after: list[int]) -> list[tuple[int, int, int]] | None:
    """The factors of a group, the slowest first: extent, and the place of its dimension on each side.

    None where what is left of a dimension does not divide what is left of the other's.
    """
    factors = []
    old, new, i, j = before[0], after[0], 0, 0
    while True:
        extent = min(old, new)
        if max(old, new) % extent:
            return None
        factors.append((extent, i, j))
        old, new = old // extent, new // extent
        if old == 1:
            i += 1
            if i == len(before):
                return factors
            old = before[i]
        if new == 1:
            j += 1
            new = after[j]
