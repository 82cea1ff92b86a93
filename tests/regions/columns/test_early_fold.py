"""Early folds: a member folds what it has of several contributions once, whatever the number of owners."""

from __future__ import annotations

import numpy as np
import pytest
from listed_pushes import listed, told

from maniple.regions.privilege import READ, reduce
from maniple.regions.rectangle import Rect
from maniple.runtime.analysis import column_analysis
from maniple.runtime.analysis import fragment as columns
from maniple.runtime.analysis.fragment import Fragment, FragmentKey, HostDistance
from maniple.runtime.analysis.placed_use import PlacedUse
from maniple.runtime.analysis.step_analysis import analyse_by_use
from maniple.runtime.schedule.instance import InstanceKind
from maniple.runtime.schedule.schedule import RowKind

WHOLE = Rect((0,), (12,))
SUM = reduce("+")


def tasks(memories: int, rect: Rect = WHOLE) -> tuple[PlacedUse, ...]:
    return tuple(PlacedUse(memory, (memory,), 10 + memory, memory, rect) for memory in range(memories))


def analysed(memories: int, home: tuple[tuple[int, tuple[Rect, ...]], ...] = (), contributions: int = 2) -> Fragment:
    """A region to which every memory contributes several times, and that every memory then reads."""
    uses = ((SUM, tasks(memories)),) * contributions
    key = FragmentKey(WHOLE, home, (*uses, (READ, tasks(memories))))
    blocks = column_analysis.analyse(key, (0,) * memories)
    assert blocks is not None
    found = listed(blocks, (0,) * memories)
    assert told(found) == told(analyse_by_use(key, HostDistance((0,) * memories)))
    return found


@pytest.mark.parametrize("memories", [2, 3, 4, 6])
def test_a_member_folds_its_contributions_once_for_all_owners(memories: int) -> None:
    found = analysed(memories)
    assert found.kinds.tolist() == [RowKind.FOLD] * memories + [RowKind.ALL_REDUCE]
    assert found.processors[:-1].tolist() == [10 + memory for memory in range(memories)]
    # What it folds is all of the region; each of the blocks that it owes to others is a part of that.
    for move in range(memories):
        rows = found.accesses[found.accesses[:, columns.NODE] == move]
        assert {found.spaces[space] for space in rows[:, columns.SPACE]} == {WHOLE}
        (target,) = rows[rows[:, columns.WRITES] == 1, columns.INSTANCE].tolist()
        assert found.instances[target, 1] == InstanceKind.STAGING
        sent = found.transfers[found.transfers[:, columns.SOURCE] == target, columns.SPACE]
        assert sorted(found.spaces[space].volume for space in sent) == [12 // memories] * (memories - 1)
    assert found.elements[-1] == 2 * (memories - 1) * 12


def test_one_contribution_is_folded_nowhere_before_it_leaves() -> None:
    assert analysed(3, contributions=1).kinds.tolist() == [RowKind.ALL_REDUCE]


def test_a_value_from_before_is_folded_with_the_blocks_that_it_is_of() -> None:
    """Each memory holds its block: there it is folded in, by another row than that for the blocks of others."""
    home = tuple((memory, (Rect((4 * memory,), (4 * memory + 4,)),)) for memory in range(3))
    found = analysed(3, home)
    assert found.kinds.tolist() == [RowKind.FOLD] * 6 + [RowKind.ALL_REDUCE]
    volumes = []
    for move in range(6):
        rows = found.accesses[found.accesses[:, columns.NODE] == move]
        volumes.append((len(rows) - 1, int(np.sum([found.spaces[s].volume for s in rows[:1, columns.SPACE]]))))
    assert sorted(volumes) == [(2, 8)] * 3 + [(3, 4)] * 3
