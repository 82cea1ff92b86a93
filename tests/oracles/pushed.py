"""A movement carried out push by push and fold by fold, in any order that its rows allow."""

from __future__ import annotations

from random import Random

import numpy as np

from maniple.regions.index_space import IndexSpace
from maniple.regions.rectangle import Rect
from maniple.runtime.analysis import fragment as columns
from maniple.runtime.analysis.fragment import Fragment

Cells = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def carry_out(fragment: Fragment, move: int, held: dict[int, Cells], bounds: Rect, chance: Random) -> None:
    """Carry out a collective: every instance is an array of the whole region.

    Args:
        fragment: of the region.
        move: the collective.
        held: what each instance holds; those that are written change.
        bounds: of the region.
        chance: draws what comes next of all that may.
    """
    pushes = [row for row in fragment.transfers.tolist() if row[columns.NODE] == move]
    pieces = [row for row in fragment.pieces.tolist() if row[columns.NODE] == move]
    done: set[tuple[str, int]] = set()
    waiting = [("push", number) for number in range(len(pushes))] + [("fold", number) for number in range(len(pieces))]

    def may(kind: str, number: int) -> bool:
        if kind == "fold":
            return all(("push", at) in done for at, push in enumerate(pushes) if push[columns.FEEDS] == number)
        follows = pushes[number][columns.FOLLOWS] if len(pushes[number]) > columns.FOLLOWS else -1
        after = pushes[number][columns.AFTER]
        return (after < 0 or ("fold", after) in done) and (follows < 0 or ("push", follows) in done)

    while waiting:
        item = chance.choice([item for item in waiting if may(*item)])
        waiting.remove(item)
        done.add(item)
        kind, number = item
        row = pushes[number] if kind == "push" else pieces[number]
        for place in places(fragment.spaces[row[columns.SPACE]], bounds):
            if kind == "push":
                held[row[columns.TARGET]][place] = held[row[columns.SOURCE]][place]
                continue
            total = None
            for part in fragment.parts[row[columns.FIRST] : row[columns.LAST]].tolist():
                total = held[part][place] if total is None else total + held[part][place]
            held[row[columns.FOLDED]][place] = total


def places(space: IndexSpace, bounds: Rect) -> list[tuple[slice, ...]]:
    """Where the boxes of an index space stand in an array of the region."""
    return [rect.slices(bounds.lo) for rect in space.rects]
