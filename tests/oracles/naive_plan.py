"""Movement plans, hop by hop: who sends whose block to whom in which phase, and what that costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby

from counted_runs import touched_bytes
from naive_traffic import Price, carrier_of, move_price

from maniple.regions.rectangle import Rect
from maniple.runtime.analysis.fragment import Fragment
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.network import LINE
from maniple.runtime.schedule.schedule import RowKind

Hop = tuple[int, int, int, int, bool]
"""Phase, sender, receiver, owner of the block, whether it is folded: members told by their memories."""


def levels(hosts: Sequence[int], group: Sequence[int], owners: Collection[int]) -> list[tuple[int, int, int, int]]:
    """What goes up in levels: (phase, sender, receiver, owner)."""
    found = []
    by_host: dict[int, list[int]] = defaultdict(list)
    for memory in group:
        by_host[hosts[memory]].append(memory)
    for owner in sorted(owners):
        number = by_host[hosts[owner]].index(owner)
        for host, members in by_host.items():
            leader = owner if host == hosts[owner] else members[number % len(members)]
            found += [(0, member, leader, owner) for member in members if member != leader]
            if leader != owner:
                found.append((1, leader, owner, owner))
    return found


def hops_of(up: Sequence[tuple[int, int, int, int]], phases: int, *, reduces: bool, spreads: bool) -> list[Hop]:
    """The hops of a plan, by phase: up the trees, then down them."""
    found = [(*hop, True) for hop in up] if reduces else []
    if spreads:
        base = phases if reduces else 0
        found += [(base + phases - 1 - phase, parent, child, owner, False) for phase, child, parent, owner in up]
    return sorted(found)


def plan_price(machine: Machine, hops: Sequence[Hop], sizes: Mapping[int, int], touched: Mapping[int, int]) -> Price:
    """What hops cost, one phase after the other.

    Args:
        machine: the machine.
        hops: by phase.
        sizes: bytes of the block of each owner.
        touched: bytes touched to read it, or to write it.
    """
    routes, base = machine.routes, len(machine.processors)
    folds = {(owner, receiver): 2 * sizes[owner] for _, _, receiver, owner, folded in hops if folded}
    whole_loads: dict[int, int] = defaultdict(int)
    whole_work: dict[int, int] = defaultdict(int)
    taken = 0
    for _, phase in groupby(hops, key=lambda hop: hop[0]):
        loads: dict[int, int] = defaultdict(int)
        work: dict[int, int] = defaultdict(int)
        latency = 0.0
        for _, sender, receiver, owner, folded in phase:
            work[sender] += 2 * touched[owner]
            arrival = 0.0
            for link in routes.route(sender, receiver):
                loads[link] += sizes[owner]
                arrival += routes.rate(link)[0]
            latency = max(latency, arrival)
            if folded:
                work[receiver] += sizes[owner] + folds.pop((owner, receiver), 0)
        spans = [int(1e9 * size / routes.rate(link)[1]) for link, size in loads.items()]
        for memory, total in work.items():
            carrier, speed = carrier_of(machine, memory)
            if carrier >= 0:
                spans.append(int(1e9 * total / speed))
        taken += max(spans) + int(1e9 * latency)
        for whole, part in ((whole_loads, loads), (whole_work, work)):
            for key, size in part.items():
                whole[key] += size
    held = []
    for memory, total in sorted(whole_work.items()):
        carrier, speed = carrier_of(machine, memory)
        if total and carrier >= 0:
            held.append((carrier, int(1e9 * total / speed)))
    held += [(base + link, int(1e9 * size / routes.rate(link)[1])) for link, size in sorted(whole_loads.items())]
    return max(taken, *(span for _, span in held)), held


def quickest(
    machine: Machine,
    direct: Price,
    sizes: Mapping[int, int],
    touched: Mapping[int, int],
    *,
    reduces: bool,
    spreads: bool,
) -> Price:
    """The price of the plan that takes least, of direct where none takes less.

    Args:
        machine: the machine.
        direct: what direct costs.
        sizes: bytes of the block of each member of the group; 0 for none.
        touched: bytes touched to read each.
        reduces: whether blocks are reduced.
        spreads: whether blocks are spread.
    """
    hosts = [memory.host for memory in machine.memories]
    theirs = [hosts[memory] for memory in sizes]
    if not 1 < len(set(theirs)) < len(theirs):
        return direct
    up = levels(hosts, sorted(sizes), [memory for memory, size in sizes.items() if size])
    other = plan_price(machine, hops_of(up, 2, reduces=reduces, spreads=spreads), sizes, touched)
    return other if other[0] < direct[0] else direct


def planned_price(machine: Machine, fragment: Fragment, number: int, bounds: Rect, itemsize: int) -> Price:
    """The price of a movement of a region's fragment, by the plan that takes least."""
    direct, kind = move_price(machine, fragment, number, bounds, itemsize), fragment.kinds[number]
    if kind in (RowKind.FOLD, RowKind.COPY):
        return direct
    memory = fragment.instances[:, 0].tolist()
    pushes = [row for row in fragment.transfers.tolist() if row[0] == number]
    ends = [(memory[source], memory[target], space) for _, space, source, target, *_ in pushes]
    owned = [(where, space) for move, space, where, *_ in fragment.pieces.tolist() if move == number]
    if not owned:
        first = {source: target for source, target, _ in reversed(ends)}
        owned = [(source, space) for source, target, space in ends if first[source] == target]
    sizes = dict.fromkeys(sorted({end for source, target, _ in ends for end in (source, target)}), 0)
    touched: dict[int, int] = defaultdict(int)
    for owner, space in owned:
        sizes[owner] += fragment.spaces[space].volume * itemsize
        touched[owner] += touched_bytes(fragment.spaces[space], bounds, itemsize, LINE)
    reduces, spreads = kind in (RowKind.ALL_REDUCE, RowKind.REDUCE_SCATTER), kind != RowKind.REDUCE_SCATTER
    return quickest(machine, direct, sizes, touched, reduces=reduces, spreads=spreads)
