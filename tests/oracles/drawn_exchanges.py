"""Drawn exchanges: uses of a region of which launches make collectives, and plans for these."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, reduce
from maniple.regions.rectangle import Rect
from maniple.runtime.analysis.fragment import FragmentKey
from maniple.runtime.analysis.placed_use import PlacedUse
from maniple.runtime.schedule.movement_plan import LEVELS, NAMES
from maniple.runtime.schedule.schedule import RowKind

BOUNDS = Rect((0, 0), (24, 3))
EXCHANGES = (RowKind.ALL_REDUCE, RowKind.REDUCE_SCATTER, RowKind.ALL_GATHER, RowKind.BROADCAST)


def tiles(parts: int) -> list[Rect]:
    cuts = [24 * part // parts for part in range(parts + 1)]
    return [Rect((low, 0), (high, 3)) for low, high in pairwise(cuts)]


def drawn_uses(chance: Random) -> tuple[FragmentKey, tuple[int, ...]]:
    """Uses by some memories that write tiles, read the whole or tiles, and reduce the whole; and their hosts."""
    memories = chance.randint(3, 8)
    hosts = tuple(chance.randrange(3) for _ in range(memories))
    everywhere = chance.sample(range(memories), memories)
    key = []
    for number in range(chance.randint(3, 9)):
        privilege = chance.choice([READ, READ, READ_WRITE, reduce("+"), reduce("+")]) if number else WRITE_DISCARD
        whole = privilege.reduces or (privilege is READ and chance.random() < 0.6)
        users = everywhere if chance.random() < 0.7 else everywhere[: chance.randint(1, memories)]
        spaces = [BOUNDS] * len(users) if whole else tiles(len(users))
        uses = [
            PlacedUse(point, (point,), memory, memory, space)
            for point, (memory, space) in enumerate(zip(users, spaces, strict=True))
        ]
        key.append((privilege, tuple(uses)))
    return FragmentKey(BOUNDS, (), tuple(key)), hosts


def drawn_plan(chance: Random) -> tuple[int, int]:
    """A plan, and pieces: levels of whole blocks every third time."""
    return chance.choice([(LEVELS, 1), (chance.randrange(LEVELS, len(NAMES)), chance.choice([1, 2, 3, 8]))])
