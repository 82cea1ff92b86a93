"""Traces: what is recorded, what is replayed, what is refused, and how little is left behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest
import torch
from launched import add, explode, fill, on_ranks, summed, tell, total, wait

import maniple as mp
from maniple.process.error import RequestError, RunError
from maniple.runtime.analysis.program_analysis import ProgramAnalysis
from maniple.runtime.schedule.failure import PoisonedRegion, TaskFailed
from maniple.runtime.session.session import Session

ROWS = mp.blocks((3,))


def step(session: Session, a: float, x: mp.Region, y: mp.Region, sums: mp.Region) -> mp.FutureMap:
    session.fill(sums, 0.0)
    session.index_launch(add, ROWS.colors, a, x[ROWS], y[ROWS])
    session.index_launch(total, ROWS.colors, y[ROWS], sums)
    return session.index_launch(summed, ROWS.colors, y[ROWS])


def regions(session: Session) -> tuple[mp.Region, mp.Region, mp.Region]:
    x, y, sums = session.region((9,), name="x"), session.region((9,), name="y"), session.region((), name="sums")
    x.write(torch.arange(9.0))
    y.fill(1.0)
    return x, y, sums


def program(session: Session) -> list[object]:
    """Values that change, futures of every run, and reads between some of them."""
    x, y, sums = regions(session)
    futures, seen = [], []
    for number in range(6):
        with session.trace("step"):
            futures.append(step(session, float(number), x, y, sums))
        if number % 2:
            seen.append(sums.read().item())
    return [future.reduce("+") for future in futures] + seen + [y.read().tolist()]


EXPECTED = [
    *[9.0 + 36.0 * n for n in (0, 1, 3, 6, 10, 15)],
    *[9.0 + 36.0 * n for n in (1, 6, 15)],
    [1.0 + 15.0 * i for i in range(9)],
]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_replays_compute_what_launches_do(size: int) -> None:
    assert on_ranks(size, program) == [EXPECTED] * size


def test_a_replay_analyses_and_maps_nothing(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, sums = regions(session)
    for number in range(2):
        with session.trace("step"):
            step(session, float(number), x, y, sums)

    def refuse(*_: object) -> None:
        raise AssertionError("a replay analysed or mapped")

    monkeypatch.setattr(ProgramAnalysis, "launch", refuse)
    for name in ("shard", "select_processor", "map_task", "order"):
        monkeypatch.setattr(session.mapper, name, refuse)
    for number in range(2, 6):
        with session.trace("step"):
            future = step(session, float(number), x, y, sums)
    assert future.reduce("+") == 9.0 + 36.0 * 15


def test_a_replay_tells_the_other_ranks_one_thing() -> None:
    def body(session: Session) -> object:
        x, y, sums = regions(session)
        told: list[str] = []
        control = session.runtime.world.control
        call = control.call
        control.call = lambda text, *args, **how: (told.append(text), call(text, *args, **how))[1]  # type: ignore[method-assign]
        for number in range(4):
            with session.trace("step"):
                step(session, float(number), x, y, sums)
        session.fence()
        return told

    for told in on_ranks(2, body):
        assert told[4:] == [*["trace 'step': 4 launches again"] * 3, "fence"]  # type: ignore[index]


# ------------------------------------------------------------------------------------------------------------ templates


def templates(session: Session, name: str = "step") -> int:
    return len(session.tracing.traces[name]._loaded)


def test_reads_in_between_need_no_further_template(session: Session) -> None:
    x, y, sums = regions(session)
    for number in range(6):
        with session.trace("step"):
            step(session, 1.0, x, y, sums)
        if number > 2:
            y.read()
            sums.read()
    assert templates(session) == 1


def test_a_state_that_lacks_what_a_template_needs_gets_its_own() -> None:
    """After the first half is written elsewhere its neighbours must fetch it, which the first template does not."""

    def body(session: Session) -> object:
        halves = mp.blocks((2,))
        x = session.region((4,), name="x")
        x.fill(1.0)
        seen = []
        for number in range(4):
            if number == 3:
                session.index_launch(fill, 2, 5.0, x[halves])
            with session.trace("look"):
                future = session.index_launch(summed, 2, x[mp.replicate(2)])
            seen.append(future.reduce("+"))
        return seen, templates(session, "look")

    assert on_ranks(2, body) == [([8.0, 8.0, 8.0, 40.0], 2)] * 2


def test_contributions_that_nobody_reads_do_not_pile_up(session: Session) -> None:
    x, sums = session.region((6,)), session.region(())
    x.fill(1.0)
    sums.fill(0.0)
    for _ in range(5):
        with session.trace("sum"):
            session.index_launch(total, ROWS.colors, x[ROWS], sums)
    assert templates(session, "sum") == 1
    assert sums.read().item() == 30.0


def test_two_traces_take_turns(session: Session) -> None:
    x = session.region((6,), name="x")
    x.fill(1.0)
    one = session.region((6,), name="one")
    one.fill(1.0)
    for _ in range(4):
        with session.trace("add"):
            session.index_launch(add, ROWS.colors, 1.0, one[ROWS], x[ROWS])
        with session.trace("double"):
            session.launch(add, 1.0, one, x)
    assert x.read().tolist() == [9.0] * 6
    assert (templates(session, "add"), templates(session, "double")) == (1, 1)


# ----------------------------------------------------------------------------------------------------------- divergence


def traced(session: Session, *launches: Callable[[], object]) -> None:
    """Make launches inside the trace `step`."""
    with session.trace("step"):
        for launch in launches:
            launch()


def recorded(session: Session) -> tuple[mp.Region, mp.Region]:
    x, y = session.region((9,), name="x"), session.region((9,), name="y")
    x.fill(1.0)
    y.fill(0.0)
    for _ in range(2):
        with session.trace("step"):
            session.index_launch(add, ROWS.colors, 1.0, x[ROWS], y[ROWS])
            session.launch(summed, y)
    return x, y


def test_a_launch_that_differs_is_refused_with_both(session: Session) -> None:
    x, y = recorded(session)
    made: list[mp.FutureMap] = []
    early = lambda: made.append(session.index_launch(add, ROWS.colors, 9.0, x[ROWS], y[ROWS]))  # noqa: E731
    with pytest.raises(RequestError) as caught:
        traced(session, early, lambda: session.launch(summed, x))
    message = str(caught.value)
    assert "trace 'step': launch 2 differs from the recording" in message
    assert f"recorded: launched.summed (y#{y.logical.id}), launched at {__file__}:" in message
    assert f"now:      launched.summed (x#{x.logical.id}), launched at {__file__}:" in message
    assert 'on_mismatch="rerecord"' in message
    with pytest.raises(RunError, match="given up"):
        made[0].reduce("+")
    assert y.read().tolist() == [2.0] * 9  # nothing of that run was started
    with session.trace("step"):
        session.index_launch(add, ROWS.colors, 1.0, x[ROWS], y[ROWS])
        session.launch(summed, y)
    assert y.read().tolist() == [3.0] * 9


@pytest.mark.parametrize("more", [False, True])
def test_a_trace_of_another_length_is_refused(session: Session, more: bool) -> None:
    x, y = recorded(session)
    launches = [lambda: session.index_launch(add, ROWS.colors, 1.0, x[ROWS], y[ROWS])]
    launches += [lambda: session.launch(summed, y)] * (2 if more else 0)
    with pytest.raises(RequestError, match=r"launch [23] differs") as caught:
        traced(session, *launches)
    assert ("recorded: the end" if more else "now:      the end") in str(caught.value)


def test_another_domain_or_partition_or_task_is_another_launch(session: Session) -> None:
    x, y = recorded(session)
    halves = mp.blocks((2,))
    for domain, part in ((2, halves), (3, halves), (2, ROWS)):
        with pytest.raises(RequestError, match="launch 1 differs"), session.trace("step"):
            session.index_launch(add, domain, 1.0, x[part], y[part])
    with pytest.raises(RequestError, match="launch 1 differs"), session.trace("step"):
        session.index_launch(add, 3, 1.0, x[ROWS], y)
    with session.trace("step"):  # the same domain and tiles, named otherwise
        equal = mp.blocks((3,))
        session.index_launch(add, 3, 1.0, x[equal], y[equal.bind(y.logical.bounds)])
        session.launch(summed, y)


def test_a_trace_is_recorded_again_when_asked(session: Session) -> None:
    x, y = recorded(session)
    for _ in range(3):
        with session.trace("step", on_mismatch="rerecord"):
            session.index_launch(add, ROWS.colors, 1.0, x[ROWS], y[ROWS])
            future = session.launch(summed, x)
    assert future.get() == 9.0
    assert y.read().tolist() == [5.0] * 9
    for _ in range(2):
        with session.trace("step", on_mismatch="rerecord"):
            session.index_launch(add, ROWS.colors, 1.0, x[ROWS], y[ROWS])
    assert y.read().tolist() == [7.0] * 9
    with (
        pytest.raises(RequestError, match=r"unknown on_mismatch 'record'.*did you mean 'rerecord'"),
        session.trace("step", on_mismatch="record"),
    ):
        pass


def test_an_exception_inside_leaves_what_was_launched_launched(session: Session) -> None:
    x, y = recorded(session)
    with pytest.raises(KeyError):
        traced(session, lambda: session.index_launch(add, ROWS.colors, 1.0, x[ROWS], y[ROWS]), {}.popitem)
    assert y.read().tolist() == [3.0] * 9


def test_nothing_that_waits_is_done_inside(session: Session) -> None:
    x, y = recorded(session)
    for _ in range(2):  # in a recording, and in a replay
        with session.trace("other"):
            for ask in (x.read, session.fence, lambda: session.trace("inner").__enter__()):
                with pytest.raises(RequestError, match=r"inside trace 'other'.*ask after the with block"):
                    ask()
            future = session.launch(summed, y)
            if "other" in session.tracing.traces:
                with pytest.raises(RequestError, match="a value of a launch was asked for inside trace 'other'"):
                    future.get()
    assert future.get() == 18.0


def test_launches_are_not_traced_while_debugging(session: Session) -> None:
    x, y = recorded(session)
    with session.debug(), session.trace("step"):
        session.launch(summed, x)
    assert y.read().tolist() == [2.0] * 9


# ----------------------------------------------------------------------------------------- what is around, what is left


def test_what_is_launched_after_a_replay_waits_for_it(session: Session) -> None:
    event = threading.Event()
    x, z = session.region((1,)), session.region((1,))
    x.fill(0.0)
    z.fill(0.0)
    passed = threading.Event()
    passed.set()
    for current in (passed, event):
        with session.trace("wait"):
            session.launch(wait, current, x)
    threading.Timer(0.05, event.set).start()
    assert session.launch(summed, x).get() == 2.0
    assert session.launch(tell, passed, z).get() is None


def test_a_task_that_fails_in_a_replay_is_named(session: Session) -> None:
    @mp.task
    def fails_when(number: int, x: mp.ReadWrite) -> None:
        if number == 2:
            raise ZeroDivisionError("two")
        x += 1

    x = session.region((2,), name="x")
    x.fill(0.0)
    with session.trace("step"):
        session.launch(fails_when, 0, x)
    with session.trace("step"):
        future = session.launch(fails_when, 2, x)
    with pytest.raises(TaskFailed) as caught:
        future.get()
    assert "fails_when[]@p0 failed on node 0 (rank 0): ZeroDivisionError: two" in str(caught.value)
    assert f"launched at {__file__}:" in str(caught.value)
    assert "x[0:2]" in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_failure_in_a_recording_is_one_exception(session: Session) -> None:
    x = session.region((2,), name="x")
    x.fill(0.0)
    with session.trace("step"):
        session.launch(explode, x)
    with pytest.raises(TaskFailed):
        session.fence()
    session.fence()
    with pytest.raises(PoisonedRegion):
        x.read()


def test_a_region_that_nobody_names_is_freed_with_its_traces(session: Session) -> None:
    def use() -> None:
        x = session.region((100,), name="x")
        x.fill(1.0)
        for _ in range(3):
            with session.trace("local"):
                session.launch(summed, x)

    use()
    gc.collect()
    session.fence()
    session.region((1,))
    assert "local" not in session.tracing.traces
    assert session.runtime.kept_bytes() <= 4


def test_a_recording_is_replayed_without_its_launches(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, sums = regions(session)
    for number in (1.0, 2.0):
        with session.trace("step"):
            step(session, number, x, y, sums)

    def refuse(*_: object) -> None:
        raise AssertionError("a launch was looked at")

    monkeypatch.setattr("maniple.runtime.program.operation.Operation.take", refuse)
    monkeypatch.setattr(session.tracing, "note_launch", refuse)
    for _ in range(3):
        session.trace("step").replay()
    assert y.read().tolist() == [1.0 + (1 + 2 * 4) * i for i in range(9)]
    assert sums.read().item() == 9.0 + 9 * 36.0


def test_what_has_no_recording_is_not_replayed(session: Session) -> None:
    x, y, sums = regions(session)
    with session.trace("step"):
        step(session, 1.0, x, y, sums)
    with pytest.raises(RequestError, match=r"trace 'stop' has no recording.*did you mean 'step'"):
        session.trace("stop").replay()
    with session.debug(), pytest.raises(RequestError, match="checks launches"):
        session.trace("step").replay()
    with pytest.raises(RequestError, match="inside trace 'other'"), session.trace("other"):
        session.trace("step").replay()
