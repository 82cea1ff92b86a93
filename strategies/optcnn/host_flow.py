"""Flows between hosts: what leaves a host is what is made there, less what of it is read there.

Where every element is made by equally many tasks, and read by equally many, what comes to a memory is known without
looking at who has made it: only pairs within one host are looked at. Of 64 processors on 8 hosts that are 512 of 4096.

    a matrix, made by rows on 4 processors of 2 hosts and read by columns there      p0      p1      p2      p3
    comes to it, wherever from: a fourth each                                        4/16    4/16    4/16    4/16
    of that from its own host, itself among them                                     2/16    2/16    2/16    2/16
    so from the other host                                                           2/16    2/16    2/16    2/16

That says what links carry if those that a route between hosts passes depend on its ends one by one: first on where it
begins, then on where it ends, as it does where all hosts are on one switch. And it is the same number, bit for bit, as
one finds pair by pair, for it is asked only of shares that are added up without rounding (see `cut_shares`).
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maniple.process.compilation.compiled import kernel, leaf
from maniple.strategies.optcnn.cut_shares import MOST_DIGITS, overlap

if TYPE_CHECKING:
    from maniple.runtime.schedule.network import Column, Rates, Table, Wires
    from maniple.strategies.optcnn.cut_shares import Cuts, Shares

    Folders = tuple[Column, Rates, Rates]
    Loads = tuple[Rates, Rates, Rates, Rates, Rates]

__all__: list[str] = []

Ends = tuple["Table", float]
"""By memory where, among the links of all routes, those begin and end that each of its routes to another host passes
first, and those that each from another host passes last; and the seconds of any of them. Without rows: routes between
hosts are not so, or there is one host."""


@kernel
def ends_of(wires: Wires) -> Ends:
    """The ends of routes between hosts.

    Args:
        wires: the links.
    """
    starts, passed, hosts = wires[0], wires[1], wires[7]
    count, none = len(hosts), np.empty((0, 4), dtype=np.int64)
    ends, seconds = np.full((count, 4), -1, dtype=np.int64), -1.0
    for pair in range(count * count):
        at, to = pair // count, pair % count
        if hosts[at] == hosts[to]:
            continue
        total = 0.0
        for place in range(starts[pair], starts[pair + 1]):
            total += wires[2][passed[place]]
        if seconds >= 0.0 and total != seconds:
            return none, 0.0
        seconds = total
        _shorten(ends, starts, passed, at, pair)
    for pair in range(count * count):
        at, to = pair // count, pair % count
        if hosts[at] != hosts[to] and not _ends_alike(ends, starts, passed, at, to, pair):
            return none, 0.0
    return (ends if seconds >= 0.0 else none), max(seconds, 0.0)


@leaf
def _shorten(ends: Table, starts: Column, passed: Column, at: int, pair: int) -> None:
    """Leave of what routes from a memory begin with what one more begins with, too."""
    if ends[at, 0] < 0:
        ends[at, 0], ends[at, 1] = starts[pair], starts[pair + 1]
    length = 0
    while length < min(ends[at, 1] - ends[at, 0], starts[pair + 1] - starts[pair]):
        if passed[ends[at, 0] + length] != passed[starts[pair] + length]:
            break
        length += 1
    ends[at, 1] = ends[at, 0] + length


@leaf
def _ends_alike(ends: Table, starts: Column, passed: Column, at: int, to: int, pair: int) -> bool:
    """Whether a route ends as others to the same memory do, behind what all from where it begins begin with."""
    first, last = starts[pair] + ends[at, 1] - ends[at, 0], starts[pair + 1]
    if ends[to, 2] < 0:
        ends[to, 2], ends[to, 3] = first, last
    alike = last - first == ends[to, 3] - ends[to, 2]
    for place in range(min(last - first, ends[to, 3] - ends[to, 2])):
        alike &= passed[first + place] == passed[ends[to, 2] + place]
    return bool(alike)


@leaf
def is_known(ends: Ends, cuts: Cuts, source: int, target: int) -> bool:
    """Whether what flows from one cut to another is known without looking at pairs of different hosts."""
    covers, digits = cuts[3], cuts[4]
    known = len(ends[0]) > 0 and covers[source] > 0 and covers[target] > 0
    return known and digits[source] + digits[target] <= 2 * MOST_DIGITS


@leaf
def add_by_host(
    wires: Wires, folders: Folders, ends: Ends, cuts: Cuts, source: int, target: int, added: Loads
) -> float:
    """Add up the shares on each link and what each processor folds; gives the longest latency.

    Args:
        wires: the links.
        folders: the processors.
        ends: the ends of routes between hosts.
        cuts: the cuts.
        source: the number of the one that is made.
        target: the number of the one that is read.
        added: what links carry; what processors fold, and how long they begin; and by memory what is worked with: what
            leaves its host, and what comes to it from others.
    """
    loads, folding, begun, leaving, coming = added
    memory_of, launch, byte = folders
    shares, starts, covers, by_host, hosted = cuts[0], cuts[1], cuts[3], cuts[5], cuts[6]
    for memory in range(len(leaving)):
        leaving[memory], coming[memory] = 0.0, 0.0
    for row in range(starts[source], starts[source + 1]):
        leaving[memory_of[int(shares[row, 0])]] += covers[target] * overlap(shares, row, shares, row)
    for row in range(starts[target], starts[target + 1]):
        by, whole = int(shares[row, 0]), overlap(shares, row, shares, row)
        given = covers[source] * whole
        coming[memory_of[by]] += given
        if covers[source] > 1:
            folding[by] += (given + whole) * byte[by]
            begun[by] += launch[by]
    longest = 0.0
    for host in range(hosted.shape[1] - 1):
        for place in range(hosted[target, host], hosted[target, host + 1]):
            read = starts[target] + by_host[starts[target] + place]
            for other in range(hosted[source, host], hosted[source, host + 1]):
                made = starts[source] + by_host[starts[source] + other]
                longest = max(longest, _add_within(wires, memory_of, shares, made, read, loads, leaving, coming))
    return max(longest, _add_over(wires, ends, loads, leaving, coming))


@leaf
def _add_over(wires: Wires, ends: Ends, loads: Rates, leaving: Rates, coming: Rates) -> float:
    """Add what goes from host to host to the links at both ends; gives the latency, 0 where nothing does."""
    latency = 0.0
    for memory in range(len(leaving)):
        if leaving[memory] > 0.0:
            latency = ends[1]
            for place in range(ends[0][memory, 0], ends[0][memory, 1]):
                loads[wires[1][place]] += leaving[memory]
        if coming[memory] > 0.0:
            for place in range(ends[0][memory, 2], ends[0][memory, 3]):
                loads[wires[1][place]] += coming[memory]
    return latency


@leaf
def _add_within(
    wires: Wires, memory_of: Column, shares: Shares, made: int, read: int, loads: Rates, leaving: Rates, coming: Rates
) -> float:
    """Add what stays within a host of one box for another to the links between them; gives the latency."""
    shared = overlap(shares, made, shares, read)
    if shared == 0.0:
        return 0.0
    at, to = memory_of[int(shares[made, 0])], memory_of[int(shares[read, 0])]
    leaving[at] -= shared
    coming[to] -= shared
    latency = 0.0
    if at != to:
        pair = at * len(leaving) + to
        for place in range(wires[0][pair], wires[0][pair + 1]):
            loads[wires[1][place]] += shared
            latency += wires[2][wires[1][place]]
    return latency
