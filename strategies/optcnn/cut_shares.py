"""Cuts in shares: how regions are cut among processors, each cut once, with what is found of it for all that it meets.

    a matrix by rows on 4 processors of 2 hosts      cover     1: each element is in one box
    host 0    p0 [0:1/4]      p1 [1/4:1/2]           digits    2 of the shares, and 2 for that many boxes
    host 1    p2 [1/2:3/4]    p3 [3/4:1]

Shares with few binary digits are added up and multiplied without rounding, so in any order. Of others no cover is said.
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from maniple.process.compilation.compiled import kernel, leaf
from maniple.regions.columns.boxes import AXES, HIGH, LOW, WIDTH

if TYPE_CHECKING:
    from maniple.runtime.schedule.network import Column, Table

__all__: list[str] = []

Shares = np.ndarray[tuple[int, int], np.dtype[np.float64]]
"""Boxes labelled by processor, in shares of a region's extents."""
Cuts = tuple["Shares", "Column", "Column", "Column", "Column", "Column", "Table"]
"""The boxes of all cuts; of each cut its first one, and the next one's is one past its last; of each box the first of
its cut that is the same; of each cut in how many boxes every element is, 0 where that is not said, and its digits; of
each cut its boxes by host, counted from its first; and of each cut where among these every host's begin, and end."""
ROUNDING = 1e-12
MOST_DIGITS = 26
"""Two cuts of no more have together what a floating-point number holds."""


@final
class CutTable:
    """The cuts that were met.

    Args:
        hosts: by processor its host.
    """

    def __init__(self, hosts: Column) -> None:
        self._hosts, self._numbers = hosts, dict[bytes, int]()
        self._boxes = np.empty((64, WIDTH)), np.empty(64, dtype=np.int64), np.empty(64, dtype=np.int64)
        self._starts, self._found = np.zeros(64, dtype=np.int64), np.zeros((64, 2), dtype=np.int64)
        self._hosted = np.zeros((64, 2 + int(hosts.max(initial=0))), dtype=np.int64)

    def __len__(self) -> int:
        """How many cuts there are."""
        return len(self._numbers)

    @property
    def columns(self) -> Cuts:
        """The cuts for compiled code."""
        (shares, alike, by_host), (cover, digits) = self._boxes, np.ascontiguousarray(self._found.T)
        return shares, self._starts, alike, cover, digits, by_host, self._hosted

    def number(self, shares: Shares) -> int:
        """The number of a cut.

        Args:
            shares: its boxes, by where they begin on the first axis.
        """
        count = len(self._numbers)
        number = self._numbers.setdefault(shares.tobytes(), count)
        if number == count:
            first = int(self._starts[count])
            last = first + len(shares)
            while last > len(self._boxes[0]):
                boxes, alike, by_host = (np.concatenate([own, np.empty_like(own)]) for own in self._boxes)
                self._boxes = boxes, alike, by_host
            if count + 2 > len(self._starts):
                self._starts, self._found, self._hosted = (
                    np.concatenate([own, np.zeros_like(own)]) for own in (self._starts, self._found, self._hosted)
                )
            mine = slice(first, last)
            self._boxes[0][mine], self._starts[count + 1] = shares, last
            self._found[count] = describe(
                shares, self._hosts, self._boxes[1][mine], self._boxes[2][mine], self._hosted[count]
            )
        return number


@kernel
def describe(shares: Shares, hosts: Column, alike: Column, by_host: Column, hosted: Column) -> tuple[int, int]:
    """Write what is found of a cut; gives its cover and its digits.

    Args:
        shares: its boxes.
        hosts: by processor its host.
        alike: to write, of each box the first that is the same.
        by_host: to write, the boxes by host.
        hosted: to write, where every host's begin among these, and the last's end.
    """
    place = 0
    for host in range(len(hosted) - 1):
        hosted[host] = place
        for row in range(len(shares)):
            if hosts[int(shares[row, 0])] == host:
                by_host[place] = row
                place += 1
    hosted[-1] = place
    for row in range(len(shares)):
        alike[row] = row
        for other in range(row):
            if alike[other] == other and _same(shares, other, row):
                alike[row] = other
                break
    digits = _digits(shares)
    return (_cover(shares, alike) if digits <= MOST_DIGITS else 0), digits


@leaf
def _same(shares: Shares, one: int, other: int) -> bool:
    """Whether two boxes are the same."""
    equal = True
    for column in range(LOW, WIDTH):
        equal &= shares[one, column] == shares[other, column]
    return equal


@leaf
def _digits(shares: Shares) -> int:
    """The binary digits of what boxes have in common and of sums of that; more than MOST_DIGITS: so many or more."""
    total = 0
    while (1 << total) < len(shares):
        total += 1
    for axis in range(AXES):
        most = 0
        for row in range(len(shares)):
            for side in (LOW, HIGH):
                value, digits = shares[row, side + axis], 0
                while value != np.floor(value) and digits <= MOST_DIGITS:
                    value *= 2.0
                    digits += 1
                most = max(most, digits)
        total += most
    return total


@kernel
def _cover(shares: Shares, alike: Column) -> int:
    """In how many boxes of a cut every element is; 0 where not all are in equally many."""
    counts, total = np.zeros(len(shares), dtype=np.int64), 0.0
    for row in range(len(shares)):
        counts[alike[row]] += 1
    for row in range(len(shares)):
        if alike[row] != row:
            continue
        if counts[row] != counts[0]:
            return 0
        total += overlap(shares, row, shares, row)
        for other in range(row):
            if alike[other] == other and overlap(shares, row, shares, other) > 0.0:
                return 0
    return counts[0] if total == 1.0 else 0


@leaf
def overlap(a: Shares, i: int, b: Shares, j: int) -> float:
    """The share of a region that two boxes have in common."""
    product = 1.0
    for axis in range(AXES):
        span = min(a[i, HIGH + axis], b[j, HIGH + axis]) - max(a[i, LOW + axis], b[j, LOW + axis])
        if span <= ROUNDING:
            return 0.0
        product *= span
    return product
