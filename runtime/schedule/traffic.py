"""Traffic: how long movements take and what they hold meanwhile, from what they send from where to where.

A transfer holds every link of its route from its start, each for as long as that link needs for the bytes, and ends
when the slowest link has passed them and the last one has arrived. A collective that goes direct sends every
contribution straight to its owner, then every block straight to all others: on each link for the sum of it, at
different times on different links, so it ends a latency per phase after the busiest link is free:

    4 bytes from 0 over switch s to 1; links 0-s: 2 B/s, s-1: 1 B/s, 1 s of latency each
    0-s  ##..        held for 2 s
    s-1  ####        held for 4 s; the transfer ends at 6 s

What the other plans of a collective take (see `movement_plan`) stands in `plan_price`. The plan that takes least is
taken, direct where none takes less, and the runtime makes its hops.

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
from maniple.regions.columns.validity import ALL_REDUCE, COPY, FOLD
from maniple.runtime.schedule.direct_load import load, load_group
from maniple.runtime.schedule.movement_plan import DIRECT
from maniple.runtime.schedule.network import ENGINE, Column, Wires
from maniple.runtime.schedule.plan_price import quicker
from maniple.runtime.schedule.roofline import fold_ns

if TYPE_CHECKING:
    from maniple.runtime.schedule.network import Network

__all__: list[str] = []


class Prices(NamedTuple):
    """What movements cost.

    Args:
        durations: nanoseconds of each, at least 1.
        direct: nanoseconds of each if all went direct.
        starts: where the holds of each begin, and where the last ones end.
        held: (lane, nanoseconds, bytes) of each hold.
        bytes: what each moves from one memory to another.
        plans: the number of each one's movement plan.
        pieces: into how many pieces it cuts blocks.
        staged: the elements that instances take more in each memory than if all went direct.
    """

    durations: Column
    direct: Column
    starts: Column
    held: Table
    bytes: Column
    plans: Column
    pieces: Column
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
) -> tuple[Column, Column, Column, Table, Column, Column, Column, Column]:
    """Give the `Prices` of movements of which a fold takes so many nanoseconds (by movement); see `price`."""
    durations, starts = np.zeros(len(moves), dtype=np.int64), np.zeros(len(moves) + 1, dtype=np.int64)
    sizes, held = np.zeros(len(moves), dtype=np.int64), np.zeros((4 * len(moves) + 16, 3), dtype=np.int64)
    direct = np.zeros(len(moves), dtype=np.int64)
    plans, pieces = np.zeros(len(moves), dtype=np.int64), np.ones(len(moves), dtype=np.int64)
    staged, spared = np.zeros(len(wires[4]), dtype=np.int64), np.zeros(len(wires[4]), dtype=np.int64)
    loads, touched = np.zeros(len(wires[3]), dtype=np.int64), np.zeros(len(wires[4]), dtype=np.int64)
    every_link, one = np.empty(len(wires[3]), dtype=np.int64), np.zeros((1, 4), dtype=np.int64)
    for link in range(len(every_link)):
        every_link[link] = link
    used = 0
    for number in range(len(moves)):
        kind = moves[number, KIND]
        if kind == FOLD:
            durations[number] = direct[number] = folds[number]
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
            touched[source] += 2 * moves[number, TOUCHED]
            latency = load(wires, loads, source, target, sizes[number])
        else:
            used_links = every_link
            group = members[moves[number, GROUP] : moves[number, GROUP] + moves[number, GROUP_SIZE]]
            latency = load_group(wires, loads, touched, group, kind, itemsize)
        if used + len(group) + len(used_links) > len(held):
            held = _larger(held, used + len(group) + len(used_links))
        first = used
        used, slowest = _unload(wires, processors, loads, touched, spared, group, used_links, held, first)
        phases = 2 if kind == ALL_REDUCE else 1
        durations[number] = direct[number] = max(1, slowest + int(1e9 * latency) * phases)
        if kind != COPY:
            found = quicker(wires, loads, touched, spared, staged, group, kind, itemsize, durations[number])
            plans[number], pieces[number], taken = found
            if plans[number] != DIRECT:
                used, slowest = _unload(wires, processors, loads, touched, spared, group, used_links, held, first)
                durations[number] = max(taken, slowest)
        starts[number + 1] = used
    return durations, direct, starts, held[:used], sizes, plans, pieces, staged


@leaf
def _unload(
    wires: Wires, processors: int, loads: Column, touched: Column, spared: Column, group: Table, links: Column,
    held: Table, used: int,
) -> tuple[int, int]:  # fmt: skip
    """Write the holds of what memories and links were given, and take it from them: one past the last, the longest."""
    slowest = 0
    for place in range(len(group)):
        memory = group[place, 0]
        if touched[memory] and wires[4][memory] != ENGINE:
            held[used, 0] = wires[4][memory]
            held[used, 1] = int(1e9 * touched[memory] / wires[5][memory]) + spared[memory]
            slowest = max(slowest, held[used, 1])
            used += 1
        touched[memory] = spared[memory] = 0
    for link in links:
        if loads[link]:
            held[used, 0], held[used, 1] = processors + link, int(1e9 * loads[link] / wires[3][link])
            held[used, 2] = loads[link]
            slowest = max(slowest, held[used, 1])
            loads[link] = 0
            used += 1
    return used, slowest


@inner
def _larger(held: Table, need: int) -> Table:
    """A copy of the holds with room for at least so many, those that are not yet written being zero."""
    larger = np.zeros((2 * need, held.shape[1]), dtype=np.int64)
    for row in range(len(held)):
        for column in range(held.shape[1]):
            larger[row, column] = held[row, column]
    return larger
