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
from maniple.runtime.schedule.movement_plan import (
    BETWEEN,
    DIRECT,
    FLAT,
    LEVELS,
    NAMES,
    RING_SHAPE,
    WITHIN,
    Rows,
)
from maniple.runtime.schedule.network import ENGINE, Column, Wires
from maniple.runtime.schedule.plan_flow import (
    BEGINS,
    BLOCKS,
    COPIED,
    ELEMENTS,
    PHASE,
    RECEIVER,
    SENDER,
    TILES,
    TIMES,
    WEIGHTS,
)

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
    best, levels = (DIRECT, 1, direct), movement_plan.suits(LEVELS, rows[5])
    # By part of a plan, which others have too: nanoseconds of its phases (none as long as it is not priced) and of
    # their latencies; bytes by link, bytes touched and messages by memory.
    parts = 9 if levels else 3
    spans, sent = np.full((parts, 2), -1, dtype=np.int64), np.zeros((parts, len(loads)), dtype=np.int64)
    used = np.zeros((parts, len(touched)), dtype=np.int64)
    messages = np.zeros((parts, len(touched)), dtype=np.int64)
    turns = reduces + spreads
    for plan in range(DIRECT + 1, len(NAMES)):
        # The latencies of a ring alone may be too many: then its phases, as many as members, are not looked at.
        if not movement_plan.suits(plan, rows[5]) or turns * _latencies(wires, group, plan, rows) >= best[2]:
            continue
        for part in _parts(plan):
            if part >= 0 and spans[part, 0] < 0:
                flows = _flows(part, rows, weights)
                spans[part, 0], spans[part, 1] = _load_plan(
                    wires, sent[part], used[part], messages[part], group, flows, itemsize, reduces, spreads
                )
        pieces, nanoseconds = _cut(wires, spans, sent, used, messages, plan, min(smallest, MOST_PIECES))
        if nanoseconds < best[2]:
            best = plan, pieces, nanoseconds
    for part in _parts(best[0]):
        if best[0] != DIRECT and part >= 0:
            for link in range(len(loads)):
                loads[link] += sent[part, link]
            for memory in range(len(touched)):
                touched[memory] += used[part, memory]
                spared[memory] += messages[part, memory]
            if reduces:
                _stage(staged, group, _flows(part, rows, weights))
    for place in range(len(group) if best[0] != DIRECT else 0):
        memory = group[place, 0]
        spared[memory] = (best[1] - 1) * int(1e9 * spared[memory] * wires[8][memory])
        # What is sent to others lands at these; an owner folds into its own main instance.
        staged[memory] -= len(group) * weights[place, WEIGHTS - 2] if reduces else 0
    return best


@leaf
def _parts(plan: int) -> tuple[int, int]:
    """The numbers of a plan's parts: by shape those of all members, within hosts, between hosts; none is -1."""
    if WITHIN[plan] == FLAT:
        return BETWEEN[plan], -1
    return 3 + WITHIN[plan], 6 + BETWEEN[plan]


@leaf
def _latencies(wires: Wires, group: Table, plan: int, rows: Rows) -> int:
    """Nanoseconds that the latencies of a plan's ring between hosts, or of all members, come to at least."""
    if BETWEEN[plan] != RING_SHAPE:
        return 0
    row, by_host, first = rows[0], rows[4], rows[5]
    levels = WITHIN[plan] != FLAT
    size, most = len(first) - 1 if levels else len(row), 1
    for host in range(len(first) - 1 if levels else 0):
        most = max(most, first[host + 1] - first[host])
    least = np.inf
    for number in range(most):
        for place in range(size):
            after = (place + 1) % size
            one, other = row[place], row[after]
            if levels:
                one = by_host[first[place] + number % (first[place + 1] - first[place])]
                other = by_host[first[after] + number % (first[after + 1] - first[after])]
            least = min(least, _latency(wires, group[one, 0], group[other, 0]))
            least = min(least, _latency(wires, group[other, 0], group[one, 0]))
    return (size - 1) * int(1e9 * least)


@leaf
def _latency(wires: Wires, source: int, target: int) -> float:
    """The latency of a route, in seconds."""
    latency, pair = 0.0, source * len(wires[4]) + target
    for place in range(wires[0][pair], wires[0][pair + 1]):
        latency += wires[2][wires[1][place]]
    return latency


@inner
def _flows(part: int, rows: Rows, weights: Table) -> Table:
    """The flows of a part of a plan."""
    if part < 3:
        return plan_flow.flat(part, rows, weights)
    return plan_flow.within(part - 3, rows, weights) if part < 6 else plan_flow.between(part - 6, rows, weights)


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
def _cut(
    wires: Wires, spans: Table, sent: Table, used: Table, messages: Table, plan: int, most: int
) -> tuple[int, int]:
    """In how many pieces, a power of two, a plan takes least, and how long then."""
    first, second = _parts(plan)
    taken, latency = spans[first, 0], spans[first, 1]
    if second >= 0:
        taken, latency = taken + spans[second, 0], latency + spans[second, 1]
    busiest, each = _busiest(wires, sent, used, messages, first, second)
    pieces, found = 1, max(taken, busiest) + latency
    tried = 2
    while tried <= most:
        nanoseconds = busiest + max(0, taken - busiest) // tried + latency + (tried - 1) * each
        if nanoseconds < found:
            pieces, found = tried, nanoseconds
        tried *= 2
    return pieces, found


@leaf
def _busiest(wires: Wires, sent: Table, used: Table, messages: Table, first: int, second: int) -> tuple[int, int]:
    """The longest that two parts hold a link or processor, and that a memory needs for the messages of a piece."""
    slowest = each = 0
    for memory in range(used.shape[1]):
        total, told = used[first, memory], messages[first, memory]
        if second >= 0:
            total, told = total + used[second, memory], told + messages[second, memory]
        each = max(each, int(1e9 * told * wires[8][memory]))
        if total and wires[4][memory] != ENGINE:
            slowest = max(slowest, int(1e9 * total / wires[5][memory]))
    for link in range(sent.shape[1]):
        size = sent[first, link] + (sent[second, link] if second >= 0 else 0)
        if size:
            slowest = max(slowest, int(1e9 * size / wires[3][link]))
    return slowest, each


@inner
def _load_plan(
    wires: Wires, sent: Column, used: Column, messages: Column, group: Table, flows: Table, itemsize: int,
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
def _stage(staged: Column, group: Table, flows: Table) -> None:
    """Add the tiles that flows land in, and those that are folded into where the first of a block comes."""
    for number in range(len(flows)):
        into = 2 if flows[number, BEGINS] else 1
        staged[group[flows[number, RECEIVER], 0]] += flows[number, TIMES] * into * flows[number, TILES]
