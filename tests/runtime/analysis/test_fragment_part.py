"""Parts of fragments: what is done in some memories is all there, up to the numbers of instances, and nothing else."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from drawn_exchanges import BOUNDS, drawn_uses
from listed_pushes import listed

from maniple.regions.privilege import READ
from maniple.runtime.analysis import fragment as columns
from maniple.runtime.analysis.fragment import Fragment, FragmentKey, HostDistance
from maniple.runtime.analysis.fragment_part import has_to_do, members_of, neighbours, part_of
from maniple.runtime.analysis.fragment_part import listed as told_of
from maniple.runtime.analysis.placed_use import PlacedUse
from maniple.runtime.analysis.step_analysis import analyse
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.instance import InstanceKind
from maniple.runtime.schedule.schedule import RowKind

Rows = list[tuple[object, ...]]


def drawn(seed: int) -> tuple[Fragment, Fragment, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """A fragment as it is analysed, with all pushes, and the memories of which a part is taken."""
    chance = Random(seed)
    key, hosts = drawn_uses(chance)
    key = FragmentKey(BOUNDS, (), (*key.uses, (READ, (PlacedUse(0, (0,), 0, 0, BOUNDS),))))
    fragment = analyse(key, HostDistance(hosts))
    known = np.isin(np.arange(len(hosts)), chance.sample(range(len(hosts)), chance.choice([1, 1, 2, len(hosts)])))
    return fragment, listed(fragment, hosts), known


def rows(fragment: Fragment, table: np.ndarray[tuple[int, int], np.dtype[np.int64]], *instances: int) -> Rows:
    """The rows of a table, with the places of instances and their room instead of their numbers."""
    found = []
    for row in table.tolist():
        places = [(*fragment.instances[row[column]].tolist(),) for column in instances]
        found.append((*[value for column, value in enumerate(row) if column not in instances], *places))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_a_part_has_what_is_done_in_its_memories(seed: int) -> None:
    _, whole, known = drawn(seed)
    part, tasks = part_of(whole, known)
    memory = whole.instances[:, 0]
    here = known[memory]
    for name, instance in (("tasks", columns.TASK_INSTANCE), ("accesses", columns.INSTANCE)):
        table = getattr(whole, name)
        wanted = rows(whole, table[here[table[:, instance]]], instance)
        assert rows(part, getattr(part, name), instance) == wanted, name
    assert tasks.tolist() == np.flatnonzero(here[whole.tasks[:, columns.TASK_INSTANCE]]).tolist()
    ends = columns.SOURCE, columns.TARGET
    touched = here[whole.transfers[:, columns.SOURCE]] | here[whole.transfers[:, columns.TARGET]]
    assert rows(part, part.transfers, *ends) == rows(whole, whole.transfers[touched], *ends)
    assert rows(part, part.pieces, columns.FOLDED) == rows(whole, whole.pieces, columns.FOLDED)
    for name in ("serves", "kinds", "elements", "edges", "carried"):
        assert np.array_equal(getattr(part, name), getattr(whole, name)), name
    # Who is told of twice is one instance there, too.
    used = [whole.tasks[tasks, columns.TASK_INSTANCE], whole.transfers[touched][:, ends].ravel(), whole.parts]
    told = [part.tasks[:, columns.TASK_INSTANCE], part.transfers[:, ends].ravel(), part.parts]
    names = dict(zip(np.concatenate(used).tolist(), np.concatenate(told).tolist(), strict=True))
    assert len(set(names.values())) == len(names)
    assert len(part.instances) <= len(whole.instances)
    if known.all():
        assert len(part.instances) == len(whole.instances)


def test_neighbours_get_most_of_what_lives_within_a_run() -> None:
    machine = Machine.cpu(1, ranks=8)
    found: dict[bool, list[int]] = {}
    expected: dict[int, int] = {}
    regions = [fragment for seed in range(60) for fragment, _, known in (drawn(seed),) if len(known) == 8]
    for fragment in regions:
        for move, _, source, target, *_ in fragment.transfers.tolist():
            ends = [int(fragment.instances[end, 0]) for end in (source, target)]
            if fragment.kinds[move] == RowKind.COPY and ends[0] == 0:
                expected[ends[1]] = expected.get(ends[1], 0) + int(fragment.elements[move]) * 4
    for outlives in (False, True):
        found[outlives] = neighbours(machine, (0,), [(fragment, 4, outlives) for fragment in regions])
    assert found[False] == sorted(expected, key=lambda memory: (-expected[memory], memory))[:4]
    assert len(expected) > 4
    mains = all(
        fragment.instances[source, 1] == InstanceKind.MAIN
        for fragment in regions
        for move, _, source, *_ in fragment.transfers.tolist()
        if fragment.kinds[move] == RowKind.COPY and fragment.instances[source, 0] == 0
    )
    assert (found[True] == []) == mains


def test_all_is_listed_where_all_ranks_might_be_neighbours_or_turns_are_taken() -> None:
    fragment = next(found for seed in range(60) for found, _, known in (drawn(seed),) if len(known) == 8)
    regions = [(fragment, 4, False)]
    for ranks, known, turns, every in ((5, (1,), False, True), (8, None, False, True), (8, (1,), True, True)):
        assert told_of(Machine.cpu(1, ranks=ranks), known, regions, turns=turns).all() == every
    machine = Machine.cpu(1, ranks=8)
    found = np.flatnonzero(told_of(machine, (1,), regions, turns=False)).tolist()
    assert found == sorted([1, *neighbours(machine, (1,), regions)])
    assert len(found) < 8


def test_rows_that_memories_have_to_do_with() -> None:
    machine, listed_memories = Machine.cpu(2, ranks=2), np.asarray([False, True])
    processors = np.asarray([0, 1, 2, 3, -1, -1])
    starts = np.asarray([0, 0, 0, 0, 0, 0, 1])
    found = has_to_do(machine, listed_memories, processors, starts)
    assert found.tolist() == [False, False, True, True, False, True]


def test_members_of_collectives_are_those_of_their_blocks() -> None:
    fragment = next(found for seed in range(9) for found, *_ in (drawn(seed),) if RowKind.ALL_REDUCE in found.kinds)
    assert fragment.blocks is not None
    moves = 10 + np.arange(len(fragment.kinds))
    starts, memories = members_of(10 + len(moves), [(moves, fragment)])
    for move in range(len(moves)):
        ends = fragment.blocks.ends
        own = ends[ends[:, columns.NODE] == move, columns.MEMORY_OF_END]
        assert memories[starts[10 + move] : starts[11 + move]].tolist() == own.tolist()
