"""Ready rows: the states of a row are those of the drawn table, and no others."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.process.error import RunError
from maniple.runtime.devices.event import DONE as OVER
from maniple.runtime.execution import ready_row
from maniple.runtime.execution.ready_row import (
    BROKEN,
    ENDED,
    READIED,
    SUBMITTED,
    DeviceTask,
    ReadyRow,
    ReadyTask,
    RowState,
    Transition,
    count_down,
)
from maniple.runtime.execution.recorder import silent

TRANSITIONS = (READIED, SUBMITTED, ENDED, BROKEN)


def drawn() -> set[tuple[str, str]]:
    """The (state, next) of the lines of the table in the module's docstring."""
    lines = (ready_row.__doc__ or "").splitlines()
    ruled = [number for number, line in enumerate(lines) if line.startswith("====")]
    body = lines[ruled[1] + 1 : ruled[2]]
    return {(line.split()[0], line.split()[-1]) for line in body}


def row() -> ReadyRow:
    return ReadyRow(lambda: None)


def device_task() -> DeviceTask:
    return DeviceTask(None, None, lambda: None, 0, silent, None)  # type: ignore[arg-type]


def test_the_table_is_what_is_drawn() -> None:
    lines = {(before.name.lower(), after.name.lower()) for each in TRANSITIONS for before, after in each.items()}
    assert lines == drawn()
    assert {state.name.lower() for state in RowState} == {state for line in lines for state in line}


@given(st.lists(st.sampled_from(TRANSITIONS)))
def test_whatever_happens_a_row_goes_by_the_table_or_stays(happenings: list[Transition]) -> None:
    state, line = RowState.WAITING, drawn()
    for happening in happenings:
        if state in happening:
            before, state = state, happening[state]
            assert (before.name.lower(), state.name.lower()) in line
            continue
        with pytest.raises(RunError) as refused:
            happening[state]
        assert all(word.name.lower() in str(refused.value) for word in (state, *happening))


def test_a_row_cannot_end_twice_nor_before_it_is_ready() -> None:
    one = row()
    with pytest.raises(RunError, match="ended: expected one that is ready or submitted, got one that is waiting"):
        one.end()
    assert count_down([one]) == [one]
    assert one.end() == []
    with pytest.raises(RunError, match="got one that is done"):
        one.end()


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_what_follows_starts_with_the_end_of_the_last_that_it_waits_for(done: list[bool]) -> None:
    """Of the rows before it, some are done when it is linked."""
    before = [row() for _ in done]
    last = row()
    assert count_down(before) == before
    for one, over in zip(before, done, strict=True):
        if over:
            one.end()
        one.lead(last)
    waited = [one for one, over in zip(before, done, strict=True) if not over]
    started = count_down([last])
    assert started == ([] if waited else [last])
    for number, one in enumerate(waited, 1):
        started = one.end()
        assert started == ([last] if number == len(waited) else [])
    assert last.state is RowState.READY


def test_what_takes_events_follows_a_device_task_once_that_is_submitted() -> None:
    first, early, late, host, after = device_task(), device_task(), device_task(), row(), device_task()
    count_down([first])
    first.lead(early)
    first.lead(host)
    assert first.submitted(OVER) == []  # of them, the release itself is still to come
    first.lead(late)
    assert (early.events, late.events, host.events) == ((OVER,), (OVER,), ())
    assert count_down([early, late, host]) == [early, late]
    assert first.end() == [host]
    first.lead(after)
    assert (after.events, count_down([after])) == ((), [after])


def test_a_task_that_raises_has_failed_and_what_waits_for_it_never_starts() -> None:
    class Refusing:
        device = None

        def submit(self, call: object, events: object = ()) -> None:
            raise ValueError("mine")

    last = row()
    for made in (
        ReadyTask(None, Refusing(), lambda: None, 0, silent),  # type: ignore[arg-type]
        DeviceTask(None, Refusing(), lambda: None, 0, silent, None),  # type: ignore[arg-type]
    ):
        count_down([made])
        made.lead(last)
        with pytest.raises(ValueError, match="mine"):
            made()
        assert made.state is RowState.FAILED
    assert last.left == 3


def test_a_device_that_fails_ends_the_rank() -> None:
    told = threading.Event()

    class Queue:
        def fail(self, error: BaseException) -> None:
            assert str(error) == "mine"
            told.set()

    one = DeviceTask(Queue(), None, lambda: None, 0, silent, None)  # type: ignore[arg-type]
    count_down([one])
    one.submitted(OVER)
    one._over(ValueError("mine"))
    assert one.state is RowState.FAILED
    assert told.is_set()
