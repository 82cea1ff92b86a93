"""Failures: what their messages name."""

from __future__ import annotations

from maniple.operators.lowering.step_program import FragmentCache, Program, lower
from maniple.process.error import RequestError, RunError
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import WRITE_DISCARD
from maniple.regions.rectangle import Rect
from maniple.regions.validity import UnwrittenRead
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.failure import TaskFailed, UnwrittenRegion
from maniple.runtime.schedule.launch import Launch, Point, Requirement

WHOLE = Rect((0,), (6,))
X = LogicalRegion(0, "x", WHOLE, "float32")
LAUNCH = Launch("write", (Point((2,), 1),), (Requirement(X, WRITE_DISCARD, (WHOLE,)),), provenance="train.py:7")


def test_a_row_of_a_schedule_is_named_with_all_that_is_known() -> None:
    schedule = lower(Program((LAUNCH,), {}), FragmentCache(Machine.cpu(2)))
    cause = ValueError("no")
    error = TaskFailed.of(schedule, 0, "node 1 (rank 3)", cause)
    assert str(error) == (
        "task write[2]@p1 failed on node 1 (rank 3): ValueError: no (uses x[0:6], launched at train.py:7)"
    )
    assert error.__cause__ is cause
    assert isinstance(error, RunError)


def test_a_launch_is_named_with_its_privileges() -> None:
    cause = KeyError("k")
    error = TaskFailed.of_launch(LAUNCH, 0, "node 0 (rank 0)", cause)
    assert str(error) == (
        "task write[2]@p1 failed on node 0 (rank 0): KeyError: 'k' (uses write-discard x[0:6], launched at train.py:7)"
    )
    assert error.__cause__ is cause


def test_a_task_without_regions_uses_nothing() -> None:
    error = TaskFailed.of_launch(Launch("f", (Point((), 0),), ()), 0, "node 0 (rank 0)", ValueError())
    assert "uses nothing" in str(error)


def test_an_unwritten_region_says_what_to_do() -> None:
    error = UnwrittenRegion.of(LAUNCH, X, UnwrittenRead(Rect((2,), (4,))))
    assert str(error) == "launch write reads x[2:4], which nothing has written; fill or write it"
    assert isinstance(error, RequestError)
