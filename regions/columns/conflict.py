"""Compiled conflicts: of pairs of rows of a program, the steps that use the same elements, where one of them writes.

Uses of a row ascend by instance, and among those of one by where they begin on one axis, which is the instance's own.
So two rows are walked along together, and what has ended on that axis before a use begins is not compared with it: in
an exchange among members that share memory, all write blocks of each one's instance, and the next run writes the same
blocks again, of which each meets itself alone.

    axis      0   1   2   3   4   5   6   7   8
    earlier   | a     | b     | c     | d     |
    later     | e   | f       | g         | h |      e: a   f: a, b   g: c, d   h: d
"""

# pyright: reportArgumentType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner, kernel, leaf

__all__: list[str] = []

Column = np.ndarray[tuple[int], np.dtype[np.int64]]
Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Rows = tuple[Column, Table]
"""Where the uses of each row begin, and the uses."""
Spaces = tuple[Table, Table, Column, Column]
"""Of boxes the first index and one past the last, by axis; of each space its first box and one past its last one, of
which none is empty, and which ascend by where they begin on axis 0."""

INSTANCE, STEP, SPACE, WRITES, BEGINS, ENDS = range(6)
"""Columns of a table of uses: the last two say where the space lies on the instance's axis."""


@kernel
def conflicts(pairs: Table, earlier: Rows, later: Rows, spaces: Spaces) -> Table:
    """The steps of later rows that conflict with steps of earlier ones.

    Args:
        pairs: (earlier row, later row).
        earlier: what the steps of rows use that are the first of a pair.
        later: the same of those that are the second.
        spaces: what is used.

    Returns:
        (pair, step of the later row, step of the earlier one), by ascending pair; some several times.
    """
    found, count = np.empty((max(64, 2 * len(pairs)), 3), dtype=np.int64), 0
    firsts, uses = earlier
    starts, others = later
    for pair in range(len(pairs)):
        at, stop = firsts[pairs[pair, 0]], firsts[pairs[pair, 0] + 1]
        then, end = starts[pairs[pair, 1]], starts[pairs[pair, 1] + 1]
        while at < stop and then < end:
            instance, other = uses[at, INSTANCE], others[then, INSTANCE]
            past = _last(uses, at, stop) if instance <= other else at
            last = _last(others, then, end) if other <= instance else then
            if instance == other:
                found, count = _walk(found, count, pair, uses[at:past], others[then:last], spaces)
            at, then = past, last
    return found[:count]


@leaf
def _last(uses: Table, first: int, end: int) -> int:
    """One past the last use of the instance of the first."""
    at = first + 1
    while at < end and uses[at, INSTANCE] == uses[first, INSTANCE]:
        at += 1
    return at


@inner
def _walk(found: Table, count: int, pair: int, earlier: Table, later: Table, spaces: Spaces) -> tuple[Table, int]:
    """Add the conflicts of the uses of one instance by two rows; how many there are then."""
    begin = 0
    for then in range(len(later)):
        # What ends before this use begins ends before all later ones begin, too.
        while begin < len(earlier) and earlier[begin, ENDS] <= later[then, BEGINS]:
            begin += 1
        for at in range(begin, len(earlier)):
            if earlier[at, BEGINS] >= later[then, ENDS]:
                break
            if not (earlier[at, WRITES] or later[then, WRITES]):
                continue
            if earlier[at, SPACE] != later[then, SPACE] and not meet(spaces, earlier[at, SPACE], later[then, SPACE]):
                continue
            if count == len(found):
                found = _larger(found)
            found[count, 0], found[count, 1], found[count, 2] = pair, later[then, STEP], earlier[at, STEP]
            count += 1
    return found, count


@leaf
def meet(spaces: Spaces, one: int, other: int) -> bool:
    """Whether two spaces share a point."""
    lows, highs, first, last = spaces
    begin = first[other]
    for box in range(first[one], last[one]):
        while begin < last[other] and highs[begin, 0] <= lows[box, 0]:
            begin += 1
        for second in range(begin, last[other]):
            if lows[second, 0] >= highs[box, 0]:
                break
            apart = False
            for axis in range(lows.shape[1]):
                apart |= lows[box, axis] >= highs[second, axis] or lows[second, axis] >= highs[box, axis]
            if not apart:
                return True
    return False


@inner
def _larger(table: Table) -> Table:
    """The table with room for twice as many rows."""
    larger = np.empty((2 * len(table), table.shape[1]), dtype=np.int64)
    for row in range(len(table)):
        for column in range(table.shape[1]):
            larger[row, column] = table[row, column]
    return larger
