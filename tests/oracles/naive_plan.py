"""Movement plans, hop by hop: who sends whose block to whom in which phase, and what that costs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby, pairwise

from counted_runs import touched_bytes
from naive_traffic import Price, carrier_of, move_price

from maniple.regions.rectangle import Rect
from maniple.runtime.analysis.fragment import Fragment
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.movement_plan import NAMES
from maniple.runtime.schedule.network import LINE
from maniple.runtime.schedule.schedule import RowKind

Hop = tuple[int, int, int, int, bool]
"""Phase, sender, receiver, owner of the block, whether it is folded: members told by their memories."""


Up = list[tuple[int, int, int, int]]
"""What goes up: (phase, sender, receiver, owner)."""
SHAPES = ("direct", "ring", "tree")
MOST_PIECES = 64


def toured(machine: Machine) -> list[int]:
    """The memories in the order of the tour: each is followed by the nearest of those that are left."""

    def distance(source: int, target: int) -> tuple[float, float, int]:
        rates = [machine.routes.rate(link) for link in machine.routes.route(source, target)]
        latency = 0.0
        for each, _ in rates:
            latency += each
        return -min(bandwidth for _, bandwidth in rates), latency, target

    found, left = [0], set(range(1, len(machine.memories)))
    while left:
        found.append(min(left, key=lambda target: distance(found[-1], target)))
        left.remove(found[-1])
    return found


def shaped(shape: str, row: Sequence[int], owner: int) -> tuple[int, list[tuple[int, int, int]]]:
    """Phases of a shape, and (phase, sender, receiver) of what goes up to an owner in a row of members."""
    if shape == "direct":
        return min(1, len(row) - 1), [(0, member, owner) for member in row if member != owner]
    if shape == "ring":
        at = row.index(owner)
        path = [row[(at + step) % len(row)] for step in range(1, len(row) + 1)]
        return len(row) - 1, [(phase, *pair) for phase, pair in enumerate(pairwise(path))]
    found, phase = [], 0
    cells = list(row)
    while len(cells) > 1:
        merged = []
        for first in range(0, len(cells), 2):
            pair = cells[first : first + 2]
            keeps = pair[(row.index(owner) >> phase) % 2 % len(pair)]
            found += [(phase, other, keeps) for other in pair if other != keeps]
            merged.append(keeps)
        cells, phase = merged, phase + 1
    return phase, found


def goes_up(
    within: str | None, between: str, hosts: Sequence[int], order: Sequence[int], owners: Collection[int]
) -> tuple[int, Up]:
    """In how many phases, and how, a plan goes up: of members in the order of the tour; None: it is not in levels."""
    if within is None:
        trees = {owner: shaped(between, order, owner) for owner in owners}
        phases = shaped(between, order, order[0])[0]
        return phases, [(*hop, owner) for owner, (_, tree) in sorted(trees.items()) for hop in tree]
    by_host: dict[int, list[int]] = defaultdict(list)
    for member in order:
        by_host[hosts[member]].append(member)
    before = max(shaped(within, members, members[0])[0] for members in by_host.values())
    found: Up = []
    for owner in owners:
        number = by_host[hosts[owner]].index(owner)
        leaders = [members[number % len(members)] for members in by_host.values()]
        for leader, members in zip(leaders, by_host.values(), strict=True):
            found += [(*hop, owner) for hop in shaped(within, members, leader)[1]]
        found += [(before + phase, *ends, owner) for phase, *ends in shaped(between, leaders, owner)[1]]
    return before + shaped(between, list(by_host), next(iter(by_host)))[0], found


def plans(hosts: Sequence[int]) -> list[str]:
    """The plans that differ in a group with these hosts, by number."""
    sizes = [list(hosts).count(host) for host in set(hosts)]
    found = []
    for name in NAMES:
        within, between = shapes(name)
        if within is None:
            suits = name == "direct" or len(hosts) > 2
        else:
            apart = len(sizes) > (1 if between == "direct" else 2)
            suits = apart and max(sizes) > (1 if within == "direct" else 2)
        found += [name] if suits else []
    return found


def shapes(name: str) -> tuple[str | None, str]:
    """The shapes of a plan within hosts (None: it is not in levels) and between them."""
    if name in SHAPES:
        return None, name
    within, _, between = name.removeprefix("levels").strip("()").partition(", ")
    return within or "direct", between or "direct"


def hops_of(up: Sequence[tuple[int, int, int, int]], phases: int, *, reduces: bool, spreads: bool) -> list[Hop]:
    """The hops of a plan, by phase: up the trees, then down them."""
    found = [(*hop, True) for hop in up] if reduces else []
    if spreads:
        base = phases if reduces else 0
        found += [(base + phases - 1 - phase, parent, child, owner, False) for phase, child, parent, owner in up]
    return sorted(found)


def plan_price(
    machine: Machine, hops: Sequence[Hop], sizes: Mapping[int, int], touched: Mapping[int, int], smallest: int
) -> Price:
    """What hops cost, in whole blocks or in as many pieces as take least.

    Args:
        machine: the machine.
        hops: by phase.
        sizes: bytes of the block of each owner.
        touched: bytes touched to read it, or to write it.
        smallest: elements of the smallest block.
    """
    routes, base = machine.routes, len(machine.processors)
    folds = {(owner, receiver): 2 * sizes[owner] for _, _, receiver, owner, folded in hops if folded}
    whole_loads: dict[int, int] = defaultdict(int)
    whole_work: dict[int, int] = defaultdict(int)
    taken = waited = 0
    messages = Counter(sender for _, sender, *_ in hops)
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
        taken += max(spans, default=0)
        waited += int(1e9 * latency)
        for whole, part in ((whole_loads, loads), (whole_work, work)):
            for key, size in part.items():
                whole[key] += size
    spent = {
        memory: int(1e9 * count * machine.processor(machine.processors_of(memory)[0]).launch_s)
        for memory, count in messages.items()
    }
    held = []
    for memory, total in sorted(whole_work.items()):
        carrier, speed = carrier_of(machine, memory)
        if total and carrier >= 0:
            held.append((carrier, int(1e9 * total / speed)))
    links = [(base + link, int(1e9 * size / routes.rate(link)[1])) for link, size in sorted(whole_loads.items())]
    busiest = max((span for _, span in (*held, *links)), default=0)
    found = [(max(taken, busiest) + waited, 1)]
    pieces = 2
    while pieces <= min(smallest, MOST_PIECES):
        more = max(0, taken - busiest) // pieces + waited + (pieces - 1) * max(spent.values())
        found.append((busiest + more, pieces))
        pieces *= 2
    least, pieces = min(found)
    memory_of = {carrier_of(machine, memory)[0]: memory for memory in whole_work}
    held = [(carrier, span + (pieces - 1) * spent.get(memory_of[carrier], 0)) for carrier, span in held]
    return max([least, *(span for _, span in (*held, *links))]), [*held, *links]


def quickest(
    machine: Machine,
    direct: Price,
    sizes: Mapping[int, int],
    touched: Mapping[int, int],
    itemsize: int,
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
        itemsize: bytes of an element.
        reduces: whether blocks are reduced.
        spreads: whether blocks are spread.
    """
    hosts = [memory.host for memory in machine.memories]
    order = [memory for memory in toured(machine) if memory in sizes]
    owners = [memory for memory, size in sizes.items() if size]
    smallest = min(sizes[owner] for owner in owners) // itemsize
    best = direct
    for name in plans([hosts[memory] for memory in sizes])[1:]:
        phases, up = goes_up(*shapes(name), hosts, order, owners)
        other = plan_price(machine, hops_of(up, phases, reduces=reduces, spreads=spreads), sizes, touched, smallest)
        best = other if other[0] < best[0] else best
    return best


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
    return quickest(machine, direct, sizes, touched, itemsize, reduces=reduces, spreads=spreads)
