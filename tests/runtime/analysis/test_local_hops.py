"""Local hops: what some members push and fold, found from blocks alone, is their part of what all push and fold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from itertools import product
from random import Random

import numpy as np
import pytest
from drawn_exchanges import BOUNDS, EXCHANGES, drawn_plan, drawn_uses
from listed_hops import table
from listed_pushes import Points, listed, points

from maniple.process.compilation.compiled import kernel
from maniple.regions.privilege import READ, reduce
from maniple.regions.rectangle import Rect
from maniple.runtime.analysis import fragment as columns
from maniple.runtime.analysis.arrangement import arrange
from maniple.runtime.analysis.fragment import Fragment, FragmentKey, HostDistance
from maniple.runtime.analysis.placed_use import PlacedUse
from maniple.runtime.analysis.step_analysis import analyse, analyse_by_use
from maniple.runtime.schedule import movement_plan
from maniple.runtime.schedule.movement_plan import DIRECT, NAMES

Column = np.ndarray[tuple[int], np.dtype[np.int64]]


class Part:
    """A fragment as some memories see it, in the order in which rows list it; instances are told by their number."""

    def __init__(self, fragment: Fragment, known: Collection[int]) -> None:
        self.fragment, self.memory = fragment, fragment.instances[:, 0].tolist()
        self.pieces: dict[int, list[tuple[int, int, Points, tuple[int, ...]]]] = defaultdict(list)
        self.pushes: dict[int, list[tuple[int, int, Points, int, int, int]]] = defaultdict(list)
        self.uses: dict[tuple[int, int, int], Points] = defaultdict(frozenset)
        folds: dict[tuple[int, int], int] = {}
        counted: dict[int, int] = defaultdict(int)
        for move, space, memory, target, first, last in fragment.pieces.tolist():
            if memory in known:
                folds[move, counted[move]] = len(self.pieces[move])
                parts = tuple(fragment.parts[first:last].tolist())
                self.pieces[move].append((memory, target, points(fragment, space), parts))
            counted[move] += 1
        sent: dict[tuple[int, int], int] = {}
        counted.clear()
        width = fragment.transfers.shape[1]
        for move, space, source, target, feeds, after, *rest in fragment.transfers.tolist():
            follows = rest[0] if width > columns.FOLLOWS else -1
            if {self.memory[source], self.memory[target]}.intersection(known):
                before = folds.get((move, feeds), -1), folds.get((move, after), -1), sent.get((move, follows), -1)
                sent[move, counted[move]] = len(self.pushes[move])
                self.pushes[move].append((source, target, points(fragment, space), *before))
            counted[move] += 1
        for move, space, instance, writes, _ in fragment.accesses.tolist():
            if self.memory[instance] in known:
                self.uses[move, instance, writes] |= points(fragment, space)

    def tasks(self) -> list[tuple[int, int, int, Points]]:
        """Every task, whether it writes, and what."""
        rows = self.fragment.tasks.tolist()
        return [(use, point, writes, points(self.fragment, space)) for use, point, space, _, writes in rows]

    def place(self, instance: int) -> tuple[int, ...]:
        """Where an instance is, why, and of what size."""
        memory, kind, space, count = self.fragment.instances[instance].tolist()
        return memory, kind, *self.fragment.spaces[space].bounds.lo, *self.fragment.spaces[space].bounds.hi, count


def assert_same(whole: Part, local: Part, moves: Collection[int]) -> None:
    """The two are one, up to the numbers of instances."""
    named: dict[int, int] = {}
    ours, told = whole.fragment.tasks, local.fragment.tasks
    assert whole.tasks() == local.tasks()

    def name(one: int, other: int) -> None:
        assert whole.place(one) == local.place(other)
        assert named.setdefault(one, other) == other

    for mine, other in zip(
        ours[:, columns.TASK_INSTANCE].tolist(), told[:, columns.TASK_INSTANCE].tolist(), strict=True
    ):
        name(mine, other)
    for move in moves:
        assert len(whole.pieces[move]) == len(local.pieces[move])
        for mine, theirs in zip(whole.pieces[move], local.pieces[move], strict=True):
            assert (mine[0], mine[2], len(mine[3])) == (theirs[0], theirs[2], len(theirs[3]))
            name(mine[1], theirs[1])
            for one, other in zip(mine[3], theirs[3], strict=True):
                name(one, other)
        assert len(whole.pushes[move]) == len(local.pushes[move])
        for sent, heard in zip(whole.pushes[move], local.pushes[move], strict=True):
            assert sent[2:] == heard[2:]
            name(sent[0], heard[0])
            name(sent[1], heard[1])
    assert len(set(named.values())) == len(named)
    used = {
        (move, named[number], writes): found for (move, number, writes), found in whole.uses.items() if move in moves
    }
    assert used == {key: found for key, found in local.uses.items() if key[0] in moves}


@pytest.mark.parametrize("seed", range(60))
def test_what_memories_know_is_their_part_of_the_whole(seed: int) -> None:
    chance = Random(seed)
    drawn, hosts = drawn_uses(chance)
    # Columns do not hold contributions that stay unfolded.
    key = FragmentKey(BOUNDS, (), (*drawn.uses, (READ, (PlacedUse(0, (0,), 0, 0, BOUNDS),))))
    near = HostDistance(hosts)
    whole, blocks = analyse_by_use(key, near), analyse(key, near)
    assert blocks.blocks is not None
    for name in ("serves", "kinds", "elements"):
        assert np.array_equal(getattr(whole, name), getattr(blocks, name)), name
    for name in ("edges", "carried"):
        assert set(map(tuple, getattr(whole, name).tolist())) == set(map(tuple, getattr(blocks, name).tolist())), name
    plan, cut = chance.choice([(DIRECT, 1), drawn_plan(chance), drawn_plan(chance)])
    moves = [move for move, kind in enumerate(whole.kinds.tolist()) if kind in EXCHANGES]
    plans, pieces = np.full(len(whole.kinds), DIRECT), np.ones(len(whole.kinds), dtype=np.int64)
    plans[moves], pieces[moves] = plan, cut
    tour = np.asarray(chance.sample(range(len(hosts)), len(hosts)))
    known = chance.sample(range(len(hosts)), chance.choice([1, 1, 2, len(hosts)]))
    flags = np.isin(np.arange(len(hosts)), known)
    places = np.asarray(hosts), tour
    arranged = arrange(whole, plans, pieces, places, np.full(len(hosts), fill_value=True))
    found = arrange(blocks, plans, pieces, places, flags)
    assert_same(Part(arranged, known), Part(found, known), moves)
    if len(known) == len(hosts):
        assert len(found.transfers) == len(arranged.transfers)


@kernel
def _children(plan: int, hosts: Column, tour: Column, owner: int, member: int) -> Column:
    found = np.empty(len(hosts), dtype=np.int64)
    count = movement_plan.children(plan, movement_plan.stand(hosts, tour), owner, member, found)
    return found[:count].copy()


@pytest.mark.parametrize("seed", range(12))
def test_who_sends_to_a_member_is_found_without_the_hops_of_others(seed: int) -> None:
    chance = Random(seed)
    count = chance.randint(2, 12)
    hosts = np.asarray([chance.randrange(chance.randint(1, 4)) for _ in range(count)])
    tour, everyone = np.asarray(chance.sample(range(20), count)), np.ones(count, dtype=np.int64)
    for plan in range(len(NAMES)):
        if plan != DIRECT and not movement_plan.differs(plan, hosts, tour):
            continue
        hops = table(plan, hosts, tour, everyone, True, False).tolist()
        for owner, member in product(range(count), repeat=2):
            expected = sorted(hop[1] for hop in hops if hop[3] == owner and hop[2] == member)
            assert _children(plan, hosts, tour, owner, member).tolist() == expected, (NAMES[plan], owner, member)


def test_what_a_member_knows_grows_as_the_members_do() -> None:
    """Of an all-reduce by n members, what one of them lists, and what all do."""
    counted = {}
    for members in (8, 16):
        bounds = Rect((0,), (64,))
        everywhere = tuple(PlacedUse(number, (number,), number, number, bounds) for number in range(members))
        key = FragmentKey(bounds, (), ((reduce("+"), everywhere), (READ, everywhere)))
        near, places = HostDistance((0,) * members), (np.zeros(members, dtype=np.int64), np.arange(members))
        blocks = analyse(key, near)
        direct = np.zeros(len(blocks.kinds), dtype=np.int64)
        mine = arrange(blocks, direct, direct + 1, places, np.arange(members) == 1)
        counted[members] = (
            len(listed(blocks, near.hosts).transfers), len(mine.transfers), len(mine.accesses), len(mine.instances),
            len(mine.pieces), len(mine.parts),
        )  # fmt: skip
    assert counted == {8: (112, 28, 31, 30, 1, 8), 16: (480, 60, 63, 62, 1, 16)}
