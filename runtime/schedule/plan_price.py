"""Prices of movement plans: how long a group takes by each, cut into how many pieces, and what that holds.

A phase takes as long as its busiest link or processor, and the longest latency of a route. Blocks that are whole go
phase by phase. Cut into P pieces, they follow each other: while one is in a phase, the next is in the one before. The
first takes a P-th of all phases, and every further one what the busiest of links and processors needs for it:

    time = latencies + (sum of phases) / P + (P - 1) / P * busiest + (P - 1) * messages

where `messages` is what one piece's hops cost the memory that sends most of them, a launch each: the latency of a
route has the first. Two phases of 4 on one link each, in 1 piece and in 4:

    first link   1111           1234
    second link      1111        1234
    time         8              5, and three messages
"""

# pyright: reportArgumentType=false, reportReturnType=false
# (compiled code: an element of an array is an integer there, and numpy's stubs know no such thing)

from __future__ import annotations

import numpy as np

from maniple.process.compilation.compiled import inner, leaf
from maniple.regions.columns.history import Table
from maniple.regions.columns.validity import ALL_REDUCE, REDUCE_SCATTER
from maniple.runtime.schedule import movement_plan, plan_flow
from maniple.runtime.schedule.movement_plan import DIRECT, NAMES, RECEIVER, SENDER, Rows
from maniple.runtime.schedule.network import ENGINE, Column, Wires
from maniple.runtime.schedule.plan_flow import BEGINS, BLOCKS, COPIED, ELEMENTS, PHASE, TILES, TIMES, WEIGHTS

__all__: list[str] = []

MOST_PIECES = 64
"""No block is cut into more pieces."""

Choice = tuple[int, int, int]
"""The number of a plan, in how many pieces, and nanoseconds."""


@inner
def quicker(
    wires: Wires, loads: Column, touched: Column, spared: Column, staged: Column, group: Table, kind: int,
    itemsize: int, direct: int,
) -> Choice:  # fmt: skip
    """The plan of a collective that takes least, and less than direct; direct where there is none.

    Args:
        wires: the network's.
        loads: by link the bytes that the plan sends over it, if it is not direct; zeros before.
        touched: by memory the bytes that it touches there; zeros before.
        spared: by memory the nanoseconds that sending further pieces takes there; zeros before.
        staged: the elements that instances take more by the plan are added, by memory.
        group: the members.
        kind: of the collective.
        itemsize: bytes of an element.
        direct: the nanoseconds that direct takes.
    """
    reduces, spreads = kind in (ALL_REDUCE, REDUCE_SCATTER), kind != REDUCE_SCATTER
    rows, weights, smallest = _weighed(wires, group)
    best, most = (DIRECT, 1, direct), np.empty((0, 9), dtype=np.int64)
    for plan in range(DIRECT + 1, len(NAMES)):
        if not movement_plan.suits(plan, rows[5]) or _least(wires, plan, rows, group, reduces and spreads) >= best[2]:
            continue
        found, phases = plan_flow.flows(plan, rows, weights)
        sent, used = np.zeros(len(loads), dtype=np.int64), np.zeros(len(touched), dtype=np.int64)
        messages = np.zeros(len(touched), dtype=np.int64)
        taken, latency = _load_plan(wires, sent, used, messages, group, found, phases, itemsize, reduces, spreads)
        busiest, each = _busiest(wires, sent, used, messages)
        pieces, nanoseconds = _cut(taken, latency, busiest, each, min(smallest, MOST_PIECES))
        if nanoseconds < best[2]:
            best, most = (plan, pieces, nanoseconds), found
            for link in range(len(loads)):
                loads[link] = sent[link]
            for memory in range(len(touched)):
                touched[memory] = used[memory]
                spared[memory] = (pieces - 1) * int(1e9 * messages[memory] * wires[8][memory])
    if reduces and best[0] != DIRECT:
        _stage(staged, group, weights, most)
    return best


@inner
def _weighed(wires: Wires, group: Table) -> tuple[Rows, Table, int]:
    """How a group stands, what its members own, and the fewest elements that one owns who owns any."""
    hosts, tour = np.empty(len(group), dtype=np.int64), np.empty(len(group), dtype=np.int64)
    weights, smallest = np.zeros((len(group), WEIGHTS), dtype=np.int64), MOST_PIECES
    for place in range(len(group)):
        hosts[place], tour[place] = wires[7][group[place, 0]], wires[9][group[place, 0]]
        if group[place, 1] > 0:
            smallest = min(smallest, group[place, 1])
            for column in range(WEIGHTS - 1):
                weights[place, column] = group[place, 1 + column]
            weights[place, WEIGHTS - 1] = 1
    return movement_plan.stand(hosts, tour), weights, smallest


@leaf
def _least(wires: Wires, plan: int, rows: Rows, group: Table, both: bool) -> int:  # noqa: FBT001
    """The least nanoseconds that a plan can take: as many latencies as it has phases, of the shortest routes there."""
    row, _, _, _, _, first = rows
    if movement_plan.WITHIN[plan] != movement_plan.FLAT or len(row) <= MOST_PIECES:
        return 0  # such have few flows, and are priced in full
    shortest = np.inf
    for place in range(len(row)):
        pair = group[row[place], 0] * len(wires[4]) + group[row[(place + 1) % len(row)], 0]
        latency = 0.0
        for number in range(wires[0][pair], wires[0][pair + 1]):
            latency += wires[2][wires[1][number]]
        shortest = min(shortest, latency)
    if movement_plan.BETWEEN[plan] != movement_plan.RING_SHAPE:
        return 0
    return movement_plan.phases(plan, first) * (2 if both else 1) * int(1e9 * shortest)


@leaf
def _cut(taken: int, latency: int, busiest: int, each: int, most: int) -> tuple[int, int]:
    """In how many pieces, a power of two, a plan takes least, and how long then."""
    pieces, found = 1, max(taken, busiest) + latency
    tried = 2
    while tried <= most:
        nanoseconds = busiest + max(0, taken - busiest) // tried + latency + (tried - 1) * each
        if nanoseconds < found:
            pieces, found = tried, nanoseconds
        tried *= 2
    return pieces, found


@leaf
def _busiest(wires: Wires, sent: Column, used: Column, messages: Column) -> tuple[int, int]:
    """The longest that a link or processor is held for, and that a memory needs for the messages of a piece."""
    slowest = each = 0
    for memory in range(len(used)):
        each = max(each, int(1e9 * messages[memory] * wires[8][memory]))
        if used[memory] and wires[4][memory] != ENGINE:
            slowest = max(slowest, int(1e9 * used[memory] / wires[5][memory]))
    for link in range(len(sent)):
        if sent[link]:
            slowest = max(slowest, int(1e9 * sent[link] / wires[3][link]))
    return slowest, each


@inner
def _load_plan(
    wires: Wires, sent: Column, used: Column, messages: Column, group: Table, flows: Table, phases: int, itemsize: int,
    reduces: bool, spreads: bool,  # noqa: FBT001
) -> tuple[int, int]:  # fmt: skip
    """How long the phases of flows take, and their latencies; what they send, touch and how often is added.

    Args:
        wires: the network's.
        sent: by link the bytes.
        used: by memory the bytes that are touched.
        messages: by memory how many it sends.
        group: the members.
        flows: of the plan, up its trees.
        phases: in how many phases.
        itemsize: bytes of an element.
        reduces: whether blocks are reduced.
        spreads: whether blocks are spread.
    """
    loads, touched = np.zeros(len(sent), dtype=np.int64), np.zeros(len(used), dtype=np.int64)
    passed = np.empty(len(sent) + 1, dtype=np.int64)
    taken = latency = 0
    for down in range(2):
        if not (spreads if down else reduces):
            continue
        first = 0
        while first < len(flows):
            last, times = first, flows[first, TIMES]
            while last < len(flows) and flows[last, PHASE] == flows[first, PHASE]:
                last += 1
            longest, count = 0.0, 0
            for number in range(first, last):
                flow = flows[number]
                source, target = group[flow[SENDER], 0], group[flow[RECEIVER], 0]
                if down:
                    source, target = target, source
                size = flow[ELEMENTS] * itemsize
                touched[source] += 2 * flow[COPIED]
                messages[source] += times * flow[BLOCKS]
                if not down:
                    touched[target] += (3 if flow[BEGINS] else 1) * size
                arrival = 0.0
                pair = source * len(used) + target
                for place in range(wires[0][pair], wires[0][pair + 1]):
                    link = wires[1][place]
                    if loads[link] == 0 and size > 0:
                        passed[count] = link
                        count += 1
                    loads[link] += size
                    arrival += wires[2][link]
                longest = max(longest, arrival)
            slowest = _settle(wires, sent, used, loads, touched, passed[:count], group, times)
            taken += times * slowest
            latency += times * int(1e9 * longest)
            first = last
    return taken, latency


@leaf
def _settle(
    wires: Wires, sent: Column, used: Column, loads: Column, touched: Column, passed: Column, group: Table, times: int
) -> int:
    """How long a phase takes that so loads links and touches memories: added as often as there are such, and taken."""
    slowest = 0
    for place in range(len(group)):
        memory = group[place, 0]
        if touched[memory]:
            if wires[4][memory] != ENGINE:
                slowest = max(slowest, int(1e9 * touched[memory] / wires[5][memory]))
            used[memory] += times * touched[memory]
            touched[memory] = 0
    for link in passed:
        slowest = max(slowest, int(1e9 * loads[link] / wires[3][link]))
        sent[link] += times * loads[link]
        loads[link] = 0
    return slowest


@leaf
def _stage(staged: Column, group: Table, weights: Table, flows: Table) -> None:
    """Add what instances take more than if all went direct: tiles that others fold, and what these fold them into."""
    for place in range(len(group)):
        # Every other member's tile lands elsewhere; the owner folds into its own main instance.
        staged[group[place, 0]] -= len(group) * weights[place, WEIGHTS - 2]
    for number in range(len(flows)):
        flow = flows[number]
        into = 2 if flow[BEGINS] else 1
        staged[group[flow[RECEIVER], 0]] += flow[TIMES] * into * flow[TILES]
