"""Fragments as they are told without the numbers of instances: who pushes what where, of collectives that go direct."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import product

import numpy as np
from drawn_exchanges import EXCHANGES

from maniple.runtime.analysis.arrangement import arrange
from maniple.runtime.analysis.fragment import Fragment
from maniple.runtime.schedule.movement_plan import DIRECT

Points = frozenset[tuple[int, ...]]


def listed(fragment: Fragment, hosts: Sequence[int]) -> Fragment:
    """A fragment with all that its collectives push and fold if they go direct."""
    count, everyone = len(fragment.kinds), np.full(len(hosts), fill_value=True)
    places = np.asarray(hosts), np.arange(len(hosts))
    return arrange(fragment, np.full(count, DIRECT), np.ones(count, dtype=np.int64), places, everyone)


def points(fragment: Fragment, space: int) -> Points:
    """The elements of a space."""
    return frozenset(
        point
        for box in fragment.spaces[space].rects
        for point in product(*(range(*ends) for ends in zip(box.lo, box.hi, strict=True)))
    )


def told(fragment: Fragment) -> dict[str, object]:
    """A fragment, instances by the order in which they are mentioned; what a collective uses by instance, in points."""
    spaces, names, exchanges = fragment.spaces, dict[int, int](), np.isin(fragment.kinds, EXCHANGES).tolist()
    used: dict[tuple[int, int, int], Points] = defaultdict(frozenset)

    def name(number: int) -> int:
        return names.setdefault(number, len(names))

    found: dict[str, object] = {
        "serves": fragment.serves.tolist(),
        "kinds": fragment.kinds.tolist(),
        "processors": fragment.processors.tolist(),
        "elements": fragment.elements.tolist(),
        "ops": fragment.ops,
        "tasks": [
            (use, point, spaces[space], name(number), writes)
            for use, point, space, number, writes in fragment.tasks.tolist()
        ],
        "accesses": [
            (move, spaces[space], name(number), writes, slot)
            for move, space, number, writes, slot in fragment.accesses.tolist()
            if not exchanges[move]
        ],
        "transfers": [
            (move, spaces[space], name(source), name(target), feeds, after)
            for move, space, source, target, feeds, after, *_ in fragment.transfers.tolist()
        ],
        "pieces": [
            (move, spaces[space], memory, name(target), tuple(map(name, fragment.parts[first:last].tolist())))
            for move, space, memory, target, first, last in fragment.pieces.tolist()
        ],
        "edges": set(map(tuple, fragment.edges.tolist())),
        "carried": set(map(tuple, fragment.carried.tolist())),
        "leaves": fragment.leaves,
    }
    for move, space, number, writes, _ in fragment.accesses.tolist():
        if exchanges[move]:
            used[move, name(number), writes] |= points(fragment, space)
    room = [(memory, kind, spaces[space], count) for memory, kind, space, count in fragment.instances.tolist()]
    return {**found, "used": dict(used), "instances": [room[number] for number in names], "count": len(room)}
