"""Arrangement: collectives by other plans than direct leave what direct leaves, and use what their accesses say."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from drawn_exchanges import BOUNDS, EXCHANGES, drawn_plan, drawn_uses, tiles
from listed_pushes import listed
from pushed import carry_out, places

from maniple.regions.privilege import READ, reduce
from maniple.runtime.analysis import fragment as columns
from maniple.runtime.analysis.arrangement import arrange
from maniple.runtime.analysis.fragment import Fragment, FragmentKey, HostDistance
from maniple.runtime.analysis.placed_use import PlacedUse
from maniple.runtime.analysis.step_analysis import analyse, analyse_by_use
from maniple.runtime.schedule.instance import InstanceKind
from maniple.runtime.schedule.movement_plan import DIRECT, LEVELS, RING
from maniple.runtime.schedule.schedule import RowKind


def drawn(chance: Random) -> tuple[Fragment, tuple[int, ...]]:
    """Uses as above, analysed; and the hosts."""
    key, hosts = drawn_uses(chance)
    return chance.choice([analyse, analyse_by_use])(key, HostDistance(hosts)), hosts


def planned(fragment: Fragment, hosts: tuple[int, ...], plan: int, cut: int = 1) -> tuple[Fragment, list[int]]:
    """A fragment with all its collectives by a plan, blocks cut into so many pieces, and these."""
    moves = [move for move, kind in enumerate(fragment.kinds.tolist()) if kind in EXCHANGES]
    plans, pieces = np.full(len(fragment.kinds), DIRECT), np.full(len(fragment.kinds), cut)
    plans[moves] = plan
    places, known = (np.asarray(hosts), np.arange(len(hosts))), np.full(len(hosts), fill_value=True)
    return arrange(fragment, plans, pieces, places, known), moves


def contents(fragment: Fragment, seed: int) -> dict[int, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """What instances hold at first: numbers of which no sum is rounded off, the same for valid values everywhere."""
    chance = np.random.default_rng(seed)
    main = chance.integers(1, 1 << 20, BOUNDS.shape).astype(np.float64)
    return {
        number: main.copy() if kind == InstanceKind.MAIN else chance.integers(1, 1 << 20, BOUNDS.shape).astype(float)
        for number, kind in enumerate(fragment.instances[:, 1].tolist())
    }


@pytest.mark.parametrize("seed", range(60))
def test_plans_leave_what_direct_leaves(seed: int) -> None:
    chance = Random(seed)
    fragment, hosts = drawn(chance)
    direct = listed(fragment, hosts)
    arranged, moves = planned(fragment, hosts, *drawn_plan(chance))
    mains = [number for number, row in enumerate(direct.instances.tolist()) if row[1] == InstanceKind.MAIN]
    for move in moves:
        found = []
        for each in (direct, arranged, arranged):
            held = contents(each, seed)
            carry_out(each, move, held, BOUNDS, chance)
            found.append([held[number] for number in mains])
        for one, other, again in zip(*found, strict=True):
            assert np.array_equal(one, other)
            assert np.array_equal(other, again)


@pytest.mark.parametrize("seed", range(60))
def test_every_element_that_is_used_is_an_access_and_every_tile_is_where_it_is_used(seed: int) -> None:
    chance = Random(seed)
    fragment, hosts = drawn(chance)
    plan, cut = drawn_plan(chance)
    direct, (arranged, moves) = listed(fragment, hosts), planned(fragment, hosts, plan, cut)
    memory, kinds = (arranged.instances[:, column].tolist() for column in (0, 1))
    allowed = {
        (move, number, writes): np.zeros(BOUNDS.shape, bool)
        for move in moves
        for number in range(len(memory))
        for writes in (0, 1)
    }
    for move, space, instance, writes, _ in arranged.accesses.tolist():
        for place in places(arranged.spaces[space], BOUNDS) if move in moves else ():
            allowed[move, instance, writes][place] = True
    used = []
    for row in arranged.transfers.tolist():
        move, space, source, target = row[:4]
        used += [(move, space, source, 0), (move, space, target, 1)] if move in moves else []
        assert memory[source] != memory[target]
    for move, space, where, target, first, last in arranged.pieces.tolist():
        parts = arranged.parts[first:last].tolist()
        used.append((move, space, target, 1))
        # What lands in a tile on its way is read by the fold that waits for it, which goes without saying.
        used += [(move, space, part, 0) for part in parts if kinds[part] != InstanceKind.STAGING]
        assert {memory[target], *(memory[part] for part in parts)} == {where}
    for move, space, instance, writes in used:
        if move in moves:
            assert all(allowed[move, instance, writes][place].all() for place in places(arranged.spaces[space], BOUNDS))
    assert pushed(arranged) == pushed(direct)
    assert cut > 1 or len(arranged.transfers) == len(direct.transfers)
    assert np.array_equal(arranged.edges, direct.edges)


def pushed(fragment: Fragment) -> dict[int, int]:
    """The elements that each movement pushes."""
    found: dict[int, int] = {}
    for move, space, *_ in fragment.transfers.tolist():
        found[move] = found.get(move, 0) + fragment.spaces[space].volume
    return found


def test_pieces_go_up_and_down_a_ring_one_after_the_other() -> None:
    """Of three members the first owns 8 rows, in two pieces: the second comes a phase behind the first."""
    uses = tuple(PlacedUse(point, (point,), point, point, BOUNDS) for point in range(3))
    fragment = analyse(FragmentKey(BOUNDS, (), ((reduce("+"), uses), (READ, uses))), HostDistance((0, 0, 0)))
    assert fragment.kinds.tolist() == [RowKind.ALL_REDUCE]
    arranged, _ = planned(fragment, (0, 0, 0), RING, 2)
    drawn = []
    for _, space, source, target, feeds, after, follows in arranged.transfers.tolist():
        rows = arranged.spaces[space].bounds
        if rows.lo[0] < 8:
            ends = (int(arranged.instances[end, 0]) for end in (source, target))
            drawn.append(f"{rows.lo[0]}..{rows.hi[0] - 1} {' -> '.join(map(str, ends))}")
            assert (feeds >= 0) + (after >= 0) + (follows >= 0) >= 1
    assert drawn == [
        "0..3 1 -> 2",
        "0..3 2 -> 0", "4..7 1 -> 2",
        "0..3 0 -> 2", "4..7 2 -> 0",
        "0..3 2 -> 1", "4..7 0 -> 2",
        "4..7 2 -> 1",
    ]  # fmt: skip


def test_a_fragment_that_lists_what_goes_direct_is_itself() -> None:
    key, hosts = drawn_uses(Random(1))
    fragment = analyse_by_use(key, HostDistance(hosts))
    assert planned(fragment, hosts, DIRECT)[0] is fragment


def test_drawn_fragments_have_collectives_of_all_kinds() -> None:
    kinds = {kind for seed in range(60) for kind in drawn(Random(seed))[0].kinds.tolist()}
    assert kinds >= set(EXCHANGES)


def test_parts_are_folded_by_ascending_memory() -> None:
    """Two hosts of two: of the block of memory 2 the leader in the first host is memory 0."""
    uses = tuple(PlacedUse(point, (point,), point, point, BOUNDS) for point in range(4))
    halves = tuple(PlacedUse(point, (point,), point, point, space) for point, space in enumerate(tiles(4)))
    fragment = analyse(FragmentKey(BOUNDS, (), ((reduce("+"), uses), (READ, halves))), HostDistance((0, 0, 1, 1)))
    assert fragment.kinds.tolist() == [RowKind.REDUCE_SCATTER]
    arranged, _ = planned(fragment, (0, 0, 1, 1), LEVELS)
    folded = {}
    for _, space, memory, _, first, last in arranged.pieces.tolist():
        came = {
            row[columns.TARGET]: int(arranged.instances[row[columns.SOURCE], 0]) for row in arranged.transfers.tolist()
        }
        parts = arranged.parts[first:last].tolist()
        folded[arranged.spaces[space].bounds.lo[0] // 6, memory] = [came.get(part, memory) for part in parts]
    assert folded == {
        (0, 0): [0, 1, 2], (0, 2): [2, 3],
        (1, 1): [0, 1, 3], (1, 3): [2, 3],
        (2, 2): [0, 2, 3], (2, 0): [0, 1],
        (3, 3): [1, 2, 3], (3, 1): [0, 1],
    }  # fmt: skip
