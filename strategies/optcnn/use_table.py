"""Use tables: how an operator uses regions under all of its choices at once, as lists of boxes, one for each choice.

    choice       who reads x, b=4                 made of it, each list by itself
    0  b=2       p0 [0:2]  p1 [2:4]               p0 [0:2]  p1 [2:4]
    1  b=1       p0 [0:4]                         p0 [0:4]

What holds of one list (see `Flows.find_made_and_read`) is worked out for all.
"""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.process.compilation.compiled import kernel
from maniple.regions.columns import boxes as box
from maniple.regions.columns.boxes import AXES, HIGH, LOW, WIDTH, Boxes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from maniple.runtime.schedule.network import Column

    Mask = npt.NDArray[np.bool_]
    Pairs = tuple[tuple[int, int], ...]
    Hulls = npt.NDArray[np.int64]
    """[..., memory, (lows, highs)]; a hull without elements has highs of 0."""

__all__: list[str] = []

FAR = np.iinfo(np.int64).max // 2
"""The low of a hull without elements."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class BoxLists:
    """Lists of boxes, one after the other.

    Args:
        starts: where each begins; and where the last one ends.
        boxes: labelled by processor.
    """

    starts: Column
    boxes: Boxes

    @classmethod
    def empty(cls, count: int) -> BoxLists:
        """So many lists without boxes."""
        return cls(np.zeros(count + 1, dtype=np.int64), np.empty((0, WIDTH), dtype=np.int64))

    @property
    def owner(self) -> Column:
        """By box, the number of its list."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def select(self, kept: Mask) -> BoxLists:
        """Some of the boxes."""
        ends = np.concatenate([[0], np.cumsum(kept)])
        return BoxLists(ends[self.starts], self.boxes[kept])


@final
@dataclass(frozen=True, slots=True, eq=False)
class UseTable:
    """One requirement of a launch under all choices of a form.

    Args:
        reads: whether it reads.
        sums: by choice, whether it contributes to a sum.
        used: what it uses under each.
    """

    reads: bool
    sums: Mask
    used: BoxLists


def joined(lists: Sequence[BoxLists], count: int) -> BoxLists:
    """Lists put together, of each number those of all, in order."""
    if len(lists) == 1:
        return lists[0]
    if not lists:
        return BoxLists.empty(count)
    owners = np.concatenate([found.owner for found in lists])
    order = np.argsort(owners, kind="stable")
    starts = np.sum([found.starts for found in lists], axis=0)
    return BoxLists(starts, np.concatenate([found.boxes for found in lists])[order])


def repeated(use: UseTable, others: Sequence[Pairs]) -> UseTable:
    """A use by more processors, which use the same.

    Args:
        use: the use.
        others: each processor with the one that does as it does, and so on.
    """
    used = [use.used]
    for pairs in others:
        other = dict(pairs)
        boxes = use.used.boxes.copy()
        boxes[:, 0] = [other[processor] for processor in boxes[:, 0].tolist()]
        used.append(BoxLists(use.used.starts, boxes))
    return replace(use, used=joined(used, len(use.used.starts) - 1))


def made_and_read(uses: Sequence[UseTable], count: int, memory_of: Column) -> tuple[BoxLists, list[BoxLists]]:
    """What the uses of a region make of it, and what each that reads needs of others, choice by choice.

    Args:
        uses: in program order; what a memory has read it holds.
        count: how many choices there are.
        memory_of: the memory of each processor.
    """
    made, read, held = list[BoxLists](), list[BoxLists](), BoxLists.empty(count)
    for use in uses:
        if use.reads:
            read.append(_lacking(use.used, held, memory_of))
            held = joined([held, read[-1]], count)
        else:
            made.append(use.used)
    # Parts that one memory gives to a sum are added up before they are sent.
    return _lacking(joined(made, count), BoxLists.empty(count), memory_of), read


def hulls(uses: Sequence[BoxLists], count: int, memories: int, memory_of: Column) -> Hulls:
    """By list and memory the hull of what several use together."""
    found = np.zeros((count, memories, 2 * AXES), dtype=np.int64)
    found[:, :, :AXES] = FAR
    for used in uses:
        _grow(found, used.starts, used.boxes, memory_of)
    return found


def _lacking(table: BoxLists, held: BoxLists, memory_of: Column) -> BoxLists:
    return table.select(_find_lacking(table.starts, table.boxes, held.starts, held.boxes, memory_of))


@kernel
def _find_lacking(starts: Column, table: Boxes, held_starts: Column, held: Boxes, memory_of: Column) -> Mask:
    """Which boxes no other box of the same list and memory contains, neither held nor earlier in the list."""
    kept = np.ones(len(table), dtype=np.bool_)
    for number in range(len(starts) - 1):
        for row in range(starts[number], starts[number + 1]):
            memory = memory_of[table[row, 0]]
            for other in range(held_starts[number], held_starts[number + 1]):
                if memory_of[held[other, 0]] == memory and box.contains(held, other, table, row):
                    kept[row] = False
                    break
            if not kept[row]:
                continue
            for other in range(starts[number], row):
                if kept[other] and memory_of[table[other, 0]] == memory and box.contains(table, other, table, row):
                    kept[row] = False
                    break
    return kept


@kernel
def _grow(found: Hulls, starts: Column, boxes: Boxes, memory_of: Column) -> None:
    """Let hulls grow to hold boxes."""
    for number in range(len(starts) - 1):
        for row in range(starts[number], starts[number + 1]):
            memory = memory_of[boxes[row, 0]]
            for axis in range(AXES):
                found[number, memory, axis] = min(found[number, memory, axis], boxes[row, LOW + axis])
                found[number, memory, AXES + axis] = max(found[number, memory, AXES + axis], boxes[row, HIGH + axis])


@kernel
def first_in_memory(rows: Column, memories: Column) -> Mask:
    """Which replicas come first in their memory, of those of one row, which are next to each other."""
    kept = np.ones(len(rows), dtype=np.bool_)
    for place in range(len(rows)):
        other = place - 1
        while other >= 0 and rows[other] == rows[place]:
            if memories[other] == memories[place]:
                kept[place] = False
                break
            other -= 1
    return kept
