"""Schedules: columns, and what can be asked of them."""

from __future__ import annotations

import pytest

from maniple.operators.lowering.step_program import FragmentCache, Program, lower
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import READ, WRITE_DISCARD
from maniple.regions.rectangle import Rect
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.launch import Launch, Point, Requirement
from maniple.runtime.schedule.schedule import RowKind, Schedule

WHOLE = Rect((0,), (6,))


@pytest.fixture
def schedule() -> Schedule:
    """Rank 0 writes six floats, rank 1 reads four of them.

    row  what                 memory  bytes  waits for
    0    write[0]@p0          0       0      1' (the copy of the step before)
    1    copy x               0, 1    16     0, 2' (the reader of the step before)
    2    read[0]@p1           1       0      1
    """
    machine = Machine.cpu(1, ranks=2)
    x = LogicalRegion(0, "x", WHOLE, "float32")
    write = Launch("write", (Point((0,), 0),), (Requirement(x, WRITE_DISCARD, (WHOLE,)),))
    read = Launch("read", (Point((0,), 1),), (Requirement(x, READ, (Rect((1,), (5,)),)),))
    return lower(Program((write, read), {}), FragmentCache(machine))


def test_the_table_of_the_fixture(schedule: Schedule) -> None:
    assert len(schedule) == 3
    assert schedule.kind.tolist() == [RowKind.TASK, RowKind.COPY, RowKind.TASK]
    assert [schedule.label(row) for row in range(3)] == ["write[0]@p0", "copy x", "read[0]@p1"]
    assert [schedule.memories(row) for row in range(3)] == [(0,), (0, 1), (1,)]
    assert schedule.bytes.tolist() == [0, 16, 0]
    assert schedule.total_bytes == 16
    assert list(schedule.edges()) == [(0, 1), (1, 2)]
    assert list(schedule.carries()) == [(1, 0), (2, 1)]
    assert schedule.order.tolist() == [0, 1, 2]


def test_memory_bytes_count_whole_instances(schedule: Schedule) -> None:
    assert schedule.memory_bytes() == {0: 24, 1: 16}


def test_accesses_and_transfers_name_instances(schedule: Schedule) -> None:
    (written,) = schedule.accesses(0)
    assert (written.writes, written.slot, written.rect) == (True, 0, WHOLE)
    (push,) = schedule.transfers(1)
    (seen,) = schedule.accesses(2)
    assert (push.source, push.target, push.rect) == (written.instance, seen.instance, Rect((1,), (5,)))
    assert (push.feeds, push.after) == (-1, -1)
    assert schedule.transfers(0) == ()


def test_text_has_a_line_per_row_with_its_predecessors(schedule: Schedule) -> None:
    lines = schedule.text().splitlines()
    assert [line.rpartition("<- ")[2] for line in lines] == ["1'", "0 2'", "1"]
    assert "16 B" in lines[1]
    assert "m0,m1" in lines[1]
