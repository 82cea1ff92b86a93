"""Cells: the points of a region that are alike, so that one answer serves all of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from maniple.regions.arrangement import arrange, meetings
from maniple.regions.index_space import IndexSpace, by_place, intersect, unite, without
from maniple.regions.movement import Contribution, Use

Pending = tuple[tuple[int, Contribution], ...]
Need = tuple[IndexSpace, tuple[int, ...]]

# What uses of more points come to is not kept for the next launch.
MANY = 256


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """Points that are alike: the same memories hold their value, and the same contributions wait for them.

    Args:
        rect: the points.
        holders: the memories whose value is valid, ascending; the value from before ``pending``, if there is any.
        pending: (number in program order, contribution), ascending, all of one operation.
    """

    rect: IndexSpace
    holders: tuple[int, ...]
    pending: Pending = ()


# Points, what its need was labelled with, and the cell that it is part of.
Piece = tuple[IndexSpace, tuple[int, ...], Cell | None]


def group(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """The cells with like neighbours joined, ascending."""
    groups: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.holders, tuple([number for number, _ in cell.pending])), []).append(cell)
    result: list[Cell] = []
    for group in groups.values():
        if len(group) == 1:
            result.append(group[0])
        else:
            result += [Cell(box, group[0].holders, group[0].pending) for box in unite([cell.rect for cell in group])]
    result.sort(key=lambda cell: by_place(cell.rect))
    return tuple(result)


def needs(uses: Sequence[Use]) -> Sequence[Need]:
    """Disjoint index spaces with the ascending memories that use them, as few as joining makes them."""
    wanted = tuple([(use.rect, use.memory) for use in uses])
    return _needs(wanted) if len(wanted) > MANY else _needs_again(wanted)


def _needs(wanted: tuple[tuple[IndexSpace, int], ...]) -> tuple[Need, ...]:
    groups: dict[tuple[int, ...], list[IndexSpace]] = {}
    for rect, places in arrange([rect for rect, _ in wanted]):
        groups.setdefault(tuple(sorted({wanted[place][1] for place in places})), []).append(rect)
    return tuple([(rect, memories) for memories, rects in groups.items() for rect in unite(rects)])


# Launch after launch names the same partitions, and so do layers that are alike.
_needs_again = functools.lru_cache(maxsize=1024)(_needs)


def cut(cells: Sequence[Cell], wanted: Sequence[Need]) -> tuple[list[Piece], list[Cell]]:
    """The wanted points cut at the cells' borders, and what they leave of the cells.

    Args:
        cells: disjoint.
        wanted: disjoint index spaces, each with the numbers that its pieces keep.
    """
    pieces: list[Piece] = []
    boxes = [rect for rect, _ in wanted]
    unmet: list[list[IndexSpace]] = [[rect] for rect in boxes]
    untouched: list[list[IndexSpace]] = [[cell.rect] for cell in cells]
    for i, j in meetings(boxes, [cell.rect for cell in cells]):
        pieces.append((intersect(boxes[i], cells[j].rect), wanted[i][1], cells[j]))
        unmet[i] = [piece for part in unmet[i] for piece in without(part, cells[j].rect)]
        untouched[j] = [piece for part in untouched[j] for piece in without(part, boxes[i])]
    for (_, label), rects in zip(wanted, unmet, strict=True):
        pieces += [(rect, label, None) for rect in rects]
    rest: list[Cell] = []
    for cell, rects in zip(cells, untouched, strict=True):
        if rects and rects[0] is cell.rect:
            rest.append(cell)
        else:
            rest += [Cell(rect, cell.holders, cell.pending) for rect in rects]
    return pieces, rest
