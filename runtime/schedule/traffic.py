"""Traffic: how long movements take and what they hold meanwhile, from what they send from where to where.

A transfer holds every link of its route from its start, each for as long as that link needs for the bytes, and ends
when the slowest link has passed them and the last one has arrived. A collective that goes direct sends every
contribution straight to its owner, then every block straight to all others: on each link for the sum of it, at
different times on different links, so it ends a latency per phase after the busiest link is free:

    4 bytes from 0 over switch s to 1; links 0-s: 2 B/s, s-1: 1 B/s, 1 s of latency each
    0-s  ##..        held for 2 s
    s-1  ####        held for 4 s; the transfer ends at 6 s

Of the other plans of a collective (see `movement_plan`) every phase takes as long as its busiest link or processor, and
a latency; phases come one after the other. The plan that takes least is taken, direct where none takes less, and the
runtime makes its hops.

A GPU has engines that copy while it computes. A CPU processor copies what it sends (it reads and writes each byte, and
whole cache lines: see `regions/columns/row_major.py`) and folds what a reduction sends it, and computes nothing
meanwhile: it is held as a link is.
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from maniple.process.compilation.compiled import inner, kernel, leaf
from maniple.regions.columns.history import BY, ELEMENTS, FROM, GROUP, GROUP_SIZE, KIND, TO, TOUCHED, Table
from maniple.regions.columns.validity import ALL_REDUCE, COPY, FOLD, REDUCE_SCATTER
from maniple.runtime.schedule import movement_plan
from maniple.runtime.schedule.movement_plan import DIRECT, FIRST, FOLDS, NAMES, OWNER, PHASE, RECEIVER, SENDER
from maniple.runtime.schedule.network import ENGINE, Column, Wires
from maniple.runtime.schedule.roofline import fold_ns

if TYPE_CHECKING:
    from maniple.runtime.schedule.network import Network

__all__: list[str] = []


class Prices(NamedTuple):
    """What movements cost.

    Args:
        durations: nanoseconds of each, at least 1.
        starts: where the holds of each begin, and where the last ones end.
        held: (lane, nanoseconds, bytes) of each hold.
        bytes: what each moves from one memory to another.
        plans: the number of each one's movement plan.
        staged: the elements that instances take more in each memory than if all went direct.
    """

    durations: Column
    starts: Column
    held: Table
    bytes: Column
    plans: Column
    staged: Column


def price(network: Network, itemsize: int, moves: Table, members: Table) -> Prices:
    """Give what the movements of one region cost.

    Args:
        network: of the machine.
        itemsize: bytes of an element.
        moves: the movements, as `regions/columns/history.py` has them: of one between memories the elements that leave
            a memory, of a fold those that it reads and writes.
        members: of their groups: memory, the elements that it sends or folds, bytes touched to read these, and the
            elements of tiles on their way to these folds.
    """
    folds = fold_ns(network.rooflines, moves[:, ELEMENTS] * itemsize, np.maximum(moves[:, BY], 0))
    return Prices(*charge(network.wires, network.processors, itemsize, moves, members, folds))


@kernel
def charge(
    wires: Wires, processors: int, itemsize: int, moves: Table, members: Table, folds: Column
) -> tuple[Column, Column, Table, Column, Column, Column]:
    """Give the `Prices` of movements of which a fold takes so many nanoseconds (by movement); see `price`."""
    durations, starts = np.zeros(len(moves), dtype=np.int64), np.zeros(len(moves) + 1, dtype=np.int64)
    sizes, held = np.zeros(len(moves), dtype=np.int64), np.zeros((4 * len(moves) + 16, 3), dtype=np.int64)
    plans, staged = np.zeros(len(moves), dtype=np.int64), np.zeros(len(wires[4]), dtype=np.int64)
    loads, touched = np.zeros(len(wires[3]), dtype=np.int64), np.zeros(len(wires[4]), dtype=np.int64)
    every_link, one = np.empty(len(wires[3]), dtype=np.int64), np.zeros((1, 4), dtype=np.int64)
    for link in range(len(every_link)):
        every_link[link] = link
    used = 0
    for number in range(len(moves)):
        kind = moves[number, KIND]
        if kind == FOLD:
            durations[number] = folds[number]
            if used == len(held):
                held = _larger(held, used + 1)
            held[used, 0], held[used, 1] = moves[number, BY], folds[number]
            used += 1
            starts[number + 1] = used
            continue
        sizes[number] = moves[number, ELEMENTS] * itemsize
        latency = 0.0
        if kind == COPY:
            source, target = moves[number, FROM], moves[number, TO]
            pair = source * len(wires[4]) + target
            used_links = wires[6][wires[0][pair] : wires[0][pair + 1]]
            one[0, 0] = source
            group = one  # a row of a table of members, so that what reads it is compiled once
            latency = _load(wires, loads, touched, source, target, sizes[number], moves[number, TOUCHED])
        else:
            used_links = every_link
            group = members[moves[number, GROUP] : moves[number, GROUP] + moves[number, GROUP_SIZE]]
            latency = _group_load(wires, loads, touched, group, kind, itemsize)
        if used + len(group) + len(used_links) > len(held):
            held = _larger(held, used + len(group) + len(used_links))
        first = used
        used, slowest = _unload(wires, processors, loads, touched, group, used_links, held, first)
        phases = 2 if kind == ALL_REDUCE else 1
        durations[number] = max(1, slowest + int(1e9 * latency) * phases)
        if kind != COPY:
            plan, taken, hops = _quicker(wires, loads, touched, group, kind, itemsize, durations[number])
            if plan != DIRECT:
                _stage(staged, group, hops)
                used, slowest = _unload(wires, processors, loads, touched, group, used_links, held, first)
                durations[number], plans[number] = max(taken, slowest), plan
        starts[number + 1] = used
    return durations, starts, held[:used], sizes, plans, staged


@inner
def _quicker(
    wires: Wires, loads: Column, touched: Column, group: Table, kind: int, itemsize: int, direct: int
) -> tuple[int, int, Table]:
    """The plan of a collective that takes least, and less than direct, of which what it sends and folds is added.

    Returns:
        Its number, direct where there is none; nanoseconds; hops.
    """
    found, least, best = DIRECT, direct, np.empty((0, 5), dtype=np.int64)
    hosts, owns = np.empty(len(group), dtype=np.int64), np.empty(len(group), dtype=np.int64)
    for place in range(len(group)):
        hosts[place], owns[place] = wires[7][group[place, 0]], group[place, 1] > 0
    for plan in range(DIRECT + 1, len(NAMES)):
        if not movement_plan.suits(plan, hosts):
            continue
        hops = movement_plan.hops(plan, hosts, owns, kind in (ALL_REDUCE, REDUCE_SCATTER), kind != REDUCE_SCATTER)
        sent, used = np.zeros(len(loads), dtype=np.int64), np.zeros(len(touched), dtype=np.int64)
        taken = _plan_ns(wires, sent, used, group, hops, itemsize)
        if taken < least:
            found, least, best = plan, taken, hops
            for link in range(len(loads)):
                loads[link] = sent[link]
            for memory in range(len(touched)):
                touched[memory] = used[memory]
    return found, least, best


@inner
def _plan_ns(wires: Wires, sent: Column, used: Column, group: Table, hops: Table, itemsize: int) -> int:
    """How long hops take, phase by phase; what they send over links and touch in memories is added."""
    loads, touched = np.zeros(len(sent), dtype=np.int64), np.zeros(len(used), dtype=np.int64)
    taken = first = 0
    while first < len(hops):
        last = first
        while last < len(hops) and hops[last, PHASE] == hops[first, PHASE]:
            last += 1
        latency = _load_hops(wires, loads, touched, group, hops[first:last], itemsize)
        slowest = 0
        for memory in range(len(touched)):
            if touched[memory] and wires[4][memory] != ENGINE:
                slowest = max(slowest, int(1e9 * touched[memory] / wires[5][memory]))
            used[memory] += touched[memory]
            touched[memory] = 0
        for link in range(len(loads)):
            if loads[link]:
                slowest = max(slowest, int(1e9 * loads[link] / wires[3][link]))
                sent[link] += loads[link]
                loads[link] = 0
        taken += slowest + int(1e9 * latency)
        first = last
    return taken


@leaf
def _load_hops(wires: Wires, loads: Column, touched: Column, group: Table, hops: Table, itemsize: int) -> float:
    """Add what hops send and fold to links and memories; returns the longest latency of a route, in seconds.

    A fold reads all that was sent and the folding member's own part, and writes once: that is counted with the first
    part that comes.
    """
    latency = 0.0
    for number in range(len(hops)):
        owner, sender, receiver = hops[number, OWNER], hops[number, SENDER], hops[number, RECEIVER]
        size, source, target = group[owner, 1] * itemsize, group[sender, 0], group[receiver, 0]
        latency = max(latency, _load(wires, loads, touched, source, target, size, group[owner, 2]))
        if hops[number, FOLDS]:
            touched[target] += (3 if hops[number, FOLDS] == FIRST else 1) * size
    return latency


@leaf
def _stage(staged: Column, group: Table, hops: Table) -> None:
    """Add what instances take more than if all went direct: tiles that others fold, and what these fold them into."""
    for number in range(len(hops)):
        owner, receiver = hops[number, OWNER], hops[number, RECEIVER]
        if hops[number, FOLDS]:
            into = 2 if hops[number, FOLDS] == FIRST and receiver != owner else 1
            staged[group[receiver, 0]] += into * group[owner, 3]
            staged[group[owner, 0]] -= group[owner, 3]


@leaf
def _load(wires: Wires, loads: Column, touched: Column, source: int, target: int, size: int, copied: int) -> float:
    """Add a push to the links of its route, and to what its source touches; returns the route's latency in seconds."""
    starts, links, latencies = wires[:3]
    touched[source] += 2 * copied
    latency = 0.0
    pair = source * len(touched) + target
    for place in range(starts[pair], starts[pair + 1]):
        loads[links[place]] += size
        latency += latencies[links[place]]
    return latency


@leaf
def _unload(
    wires: Wires, processors: int, loads: Column, touched: Column, group: Table, links: Column, held: Table, used: int
) -> tuple[int, int]:
    """Write the holds of what memories and links were given, and take it from them: one past the last, the longest."""
    slowest = 0
    for place in range(len(group)):
        memory = group[place, 0]
        if touched[memory] and wires[4][memory] != ENGINE:
            held[used, 0], held[used, 1] = wires[4][memory], int(1e9 * touched[memory] / wires[5][memory])
            slowest = max(slowest, held[used, 1])
            used += 1
        touched[memory] = 0
    for link in links:
        if loads[link]:
            held[used, 0], held[used, 1] = processors + link, int(1e9 * loads[link] / wires[3][link])
            held[used, 2] = loads[link]
            slowest = max(slowest, held[used, 1])
            loads[link] = 0
            used += 1
    return used, slowest


@leaf
def _group_load(wires: Wires, loads: Column, touched: Column, group: Table, kind: int, itemsize: int) -> float:
    """Add what a collective sends and folds: contributions to the owner of each block, blocks to others, or both."""
    latency = 0.0
    for owner in range(len(group)):
        at, size, copied = group[owner, 0], group[owner, 1] * itemsize, group[owner, 2]
        if size == 0:
            continue
        if kind in (ALL_REDUCE, REDUCE_SCATTER):
            touched[at] += (len(group) + 1) * size
        for other in range(len(group)):
            if other == owner:
                continue
            member = group[other, 0]
            if kind in (ALL_REDUCE, REDUCE_SCATTER):
                latency = max(latency, _load(wires, loads, touched, member, at, size, copied))
            if kind != REDUCE_SCATTER:
                latency = max(latency, _load(wires, loads, touched, at, member, size, copied))
    return latency


@inner
def _larger(held: Table, need: int) -> Table:
    """A copy of the holds with room for at least so many, those that are not yet written being zero."""
    larger = np.zeros((2 * need, held.shape[1]), dtype=np.int64)
    for row in range(len(held)):
        for column in range(held.shape[1]):
            larger[row, column] = held[row, column]
    return larger
