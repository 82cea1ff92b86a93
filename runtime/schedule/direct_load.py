"""Loads of collectives that go direct: what every member's sending to every other adds to links and memories.

Routes over switches from memories of one kind to memories of another differ in their first and last links alone (see
`network.py`). So what goes from kind to kind is summed, not listed: of the kinds K and L, whose members own S(K) and
S(L) in all, blocks go up to their owners and down from them

    link                    up                  down
    the first, of s in K    S(L)                size(s) * members of L
    those between           S(L) * members of K S(K) * members of L
    the last, of t in L     size(t) * members   S(K)
                            of K

Pairs that are joined by a link of their own, and those of one kind, are taken one by one: there are n * r of them where
a kind is at most a host of r, and n * n only where that many links are.
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner, leaf
from maniple.regions.columns.history import Table
from maniple.regions.columns.validity import ALL_REDUCE, REDUCE_SCATTER
from maniple.runtime.schedule.network import Column, Wires

__all__: list[str] = []


@leaf
def load(wires: Wires, loads: Column, source: int, target: int, size: int) -> float:
    """Add bytes to the links of a route; returns its latency in seconds."""
    starts, links, latencies = wires[:3]
    latency = 0.0
    pair = source * len(wires[4]) + target
    for place in range(starts[pair], starts[pair + 1]):
        loads[links[place]] += size
        latency += latencies[links[place]]
    return latency


@inner
def load_group(wires: Wires, loads: Column, touched: Column, group: Table, kind: int, itemsize: int) -> float:
    """Add what a collective sends and folds: contributions to the owner of each block, blocks to others, or both.

    Args:
        wires: the network's.
        loads: by link the bytes are added.
        touched: by memory the bytes that its processor reads and writes are added.
        group: the members.
        kind: of the collective.
        itemsize: bytes of an element.

    Returns:
        The longest latency of a route that is used, in seconds.
    """
    up, down = kind in (ALL_REDUCE, REDUCE_SCATTER), kind != REDUCE_SCATTER
    copied = 0
    for place in range(len(group)):
        copied += group[place, 2] if group[place, 1] else 0
    for place in range(len(group)):
        memory, own = group[place, 0], group[place, 2] if group[place, 1] else 0
        if up:
            touched[memory] += 2 * (copied - own)
            touched[memory] += (len(group) + 1) * group[place, 1] * itemsize if group[place, 1] else 0
        if down:
            touched[memory] += 2 * own * (len(group) - 1)
    order, first = _by_kind(wires, group)
    latency = 0.0
    for source in range(len(first) - 1):
        for target in range(len(first) - 1):
            ours, theirs = order[first[source] : first[source + 1]], order[first[target] : first[target + 1]]
            if len(ours) and len(theirs):
                if source != target and wires[11][source * (len(first) - 1) + target]:
                    found = _load_kinds(wires, loads, group, ours, theirs, itemsize, up, down)
                else:
                    found = _load_pairs(wires, loads, group, ours, theirs, itemsize, up, down)
                latency = max(latency, found)
    return latency


@inner
def _by_kind(wires: Wires, group: Table) -> tuple[Column, Column]:
    """The members of a group, by place, by their kinds, and where those of each begin."""
    kinds = wires[10]
    most = 0
    for memory in range(len(kinds)):
        most = max(most, kinds[memory])
    first, order = np.zeros(most + 2, dtype=np.int64), np.empty(len(group), dtype=np.int64)
    for place in range(len(group)):
        first[kinds[group[place, 0]] + 1] += 1
    for kind in range(most + 1):
        first[kind + 1] += first[kind]
    at = first[: most + 1].copy()
    for place in range(len(group)):
        kind = kinds[group[place, 0]]
        order[at[kind]] = place
        at[kind] += 1
    return order, first


@leaf
def _load_pairs(
    wires: Wires, loads: Column, group: Table, ours: Column, theirs: Column, itemsize: int,
    up: bool, down: bool,  # noqa: FBT001
) -> float:  # fmt: skip
    """Add what some members send to some others, pair by pair; returns the longest latency."""
    latency = 0.0
    for source in ours:
        for target in theirs:
            size = (group[target, 1] if up else 0) + (group[source, 1] if down else 0)
            if source != target and size:
                latency = max(latency, load(wires, loads, group[source, 0], group[target, 0], size * itemsize))
    return latency


@leaf
def _load_kinds(
    wires: Wires, loads: Column, group: Table, ours: Column, theirs: Column, itemsize: int,
    up: bool, down: bool,  # noqa: FBT001
) -> float:  # fmt: skip
    """Add what the members of one kind send to those of another; returns the longest latency."""
    starts, links, latencies, count = wires[0], wires[1], wires[2], len(wires[4])
    sent = owned = 0
    for target in theirs:
        owned += group[target, 1]
    for source in ours:
        sent += group[source, 1]
    if not ((up and owned) or (down and sent)):
        return 0.0
    begin = starts[group[ours[0], 0] * count + group[theirs[0], 0]]
    end = starts[group[ours[0], 0] * count + group[theirs[0], 0] + 1]
    # Of the first and the last links the longest latencies: of those that own, and of all.
    leave, leave_own, enter, enter_own = 0.0, 0.0, 0.0, 0.0
    for source in ours:
        link = links[starts[group[source, 0] * count + group[theirs[0], 0]]]
        loads[link] += ((owned if up else 0) + (group[source, 1] * len(theirs) if down else 0)) * itemsize
        leave = max(leave, latencies[link])
        leave_own = max(leave_own, latencies[link] if group[source, 1] else 0.0)
    for target in theirs:
        link = links[starts[group[ours[0], 0] * count + group[target, 0] + 1] - 1]
        loads[link] += ((group[target, 1] * len(ours) if up else 0) + (sent if down else 0)) * itemsize
        enter = max(enter, latencies[link])
        enter_own = max(enter_own, latencies[link] if group[target, 1] else 0.0)
    whole = ((owned * len(ours) if up else 0) + (sent * len(theirs) if down else 0)) * itemsize
    rising, falling = leave, leave_own
    for place in range(begin + 1, end - 1):
        loads[links[place]] += whole
        rising += latencies[links[place]]
        falling += latencies[links[place]]
    latency = rising + enter_own if up and owned else 0.0
    return max(latency, falling + enter) if down and sent else latency
