"""Processors: one thread each, priorities, cores, and failures that are handed on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from interrupted import interruptions

from maniple.process.interruption import Hold
from maniple.runtime.devices.processor import CpuProcessor, Processor
from maniple.testing import Stepper

TIMEOUT_S = 30.0


class Failures(list[BaseException]):
    """What escaped from work."""

    def __init__(self) -> None:
        super().__init__()
        self.came = threading.Event()

    def take(self, error: BaseException) -> None:
        self.append(error)
        self.came.set()


@pytest.fixture
def failures() -> Failures:
    return Failures()


@pytest.fixture
def processor(failures: Failures) -> Iterator[CpuProcessor]:
    made = CpuProcessor(0, 2, failures.take)
    yield made
    made.close()


def finish(processor: Processor) -> None:
    """Wait until the least important work has run, and so all other."""
    done = threading.Event()
    processor.enqueue(done.set, -1000)
    assert done.wait(TIMEOUT_S)


def test_greater_priority_runs_first_then_what_came_first(processor: CpuProcessor) -> None:
    begun, go, ran = threading.Event(), threading.Event(), list[str]()

    def hold() -> None:
        begun.set()
        assert go.wait(TIMEOUT_S)

    processor.enqueue(hold, 0)
    assert begun.wait(TIMEOUT_S)
    for name, priority in [("a", 0), ("b", 5), ("c", 0), ("d", -1), ("e", 5)]:
        processor.enqueue(lambda name=name: ran.append(name), priority)  # type: ignore[misc]
    go.set()
    finish(processor)
    assert ran == ["b", "e", "a", "c", "d"]


def test_all_work_runs_on_one_thread_with_its_cores_and_without_gradients(processor: CpuProcessor) -> None:
    seen = []
    here = torch.get_num_threads()
    for _ in range(3):
        processor.enqueue(
            lambda: seen.append((threading.get_ident(), torch.get_num_threads(), torch.is_grad_enabled())), 0
        )
    finish(processor)
    assert len({ident for ident, _, _ in seen}) == 1
    assert seen[0][0] != threading.get_ident()
    assert {(threads, grad) for _, threads, grad in seen} == {(2, False)}
    assert torch.is_grad_enabled()
    assert torch.get_num_threads() == here


def test_what_is_tried_apart_has_a_thread_that_ends(processor: CpuProcessor) -> None:
    seen = []
    with processor.apart() as other:
        for each in (processor, other):
            each.enqueue(lambda: seen.append((threading.current_thread(), torch.get_num_threads())), 0)
            finish(each)
    (own, cores), (apart, cores_apart) = seen
    assert own is not apart
    assert own.is_alive()
    assert not apart.is_alive()
    assert cores == cores_apart == 2
    assert (other.id, other.device) == (processor.id, processor.device)


def test_without_threads_nothing_is_apart(turns: CpuProcessor) -> None:
    with turns.apart() as other:
        assert other is turns


def test_what_escapes_is_handed_on_and_the_thread_goes_on(processor: CpuProcessor, failures: Failures) -> None:
    def raises() -> None:
        raise KeyError("lost")

    processor.enqueue(raises, 0)
    assert failures.came.wait(TIMEOUT_S)
    finish(processor)
    assert [type(error) for error in failures] == [KeyError]


def test_closing_ends_the_work_at_hand_and_drops_the_queue(failures: Failures) -> None:
    processor = CpuProcessor(1, 1, failures.take)
    begun, go, ran = threading.Event(), threading.Event(), list[str]()

    def hold() -> None:
        begun.set()
        assert go.wait(TIMEOUT_S)
        ran.append("held")

    processor.enqueue(hold, 0)
    assert begun.wait(TIMEOUT_S)
    processor.enqueue(lambda: ran.append("dropped"), 0)
    closer = threading.Thread(target=processor.close)
    with processor._arrived:
        closer.start()
        assert processor._arrived.wait_for(lambda: not processor._queue, TIMEOUT_S)
    go.set()
    closer.join(TIMEOUT_S)
    assert not closer.is_alive()
    assert ran == ["held"]
    assert failures == []


def test_work_may_close_its_own_processor(failures: Failures) -> None:
    processor = CpuProcessor(2, 1, failures.take)
    done = threading.Event()

    def leave() -> None:
        processor.close()
        done.set()

    processor.enqueue(leave, 0)
    assert done.wait(TIMEOUT_S)
    processor.close()
    assert not processor._thread.is_alive()
    assert failures == []


class Lane:
    """Work that any thread may do, as far as it goes; notes who did it."""

    def __init__(self, *, whole: bool = True) -> None:
        self.whole = whole
        self.by: list[int | None] = []
        self.done = threading.Event()

    def __call__(self) -> None:
        self.by.append(threading.get_ident())
        self.done.set()

    def take_without_waiting(self) -> bool:
        self.by.append(threading.get_ident())
        return self.whole


@pytest.fixture
def turns(failures: Failures) -> CpuProcessor:
    """A processor whose thread never comes first: it takes turns, and nobody gives it any."""
    return CpuProcessor(3, 1, failures.take, Stepper())


def test_a_thread_that_waits_does_what_comes_first_if_any_may_do_it(turns: CpuProcessor) -> None:
    lane, task, later, me = Lane(), Lane(), Lane(), threading.get_ident()
    turns.enqueue(task, 0)
    turns.enqueue(later, 0, later.take_without_waiting)
    turns.help()
    assert task.by == later.by == []
    turns.enqueue(lane, 1, lane.take_without_waiting)
    turns.help()
    turns.help()
    assert (lane.by, task.by, later.by) == ([me], [], [])
    assert turns.turn()
    turns.help()
    assert (task.by, later.by) == ([me], [me])
    assert not turns.turn()


def test_what_is_left_of_lent_work_comes_first_again(turns: CpuProcessor) -> None:
    lane, later = Lane(whole=False), Lane()
    for work in (lane, later):
        turns.enqueue(work, 0, work.take_without_waiting)
    turns.help()
    assert (len(lane.by), later.by) == (1, [])
    assert turns.turn()
    assert lane.done.is_set()
    assert later.by == []


def test_a_processor_that_is_not_woken_for_lent_work_finds_it(
    processor: CpuProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maniple.runtime.devices.processor.LOOKS", 10**6)  # it goes on looking, however long this takes
    helped, left, looks, arrived = Lane(), Lane(), threading.Event(), processor._arrived
    wait = arrived.wait

    def looked(timeout: float | None = None) -> bool:
        if timeout is not None:
            looks.set()
        return wait(timeout)

    monkeypatch.setattr(arrived, "wait", looked)
    with arrived:  # the processor's thread is woken, and comes second
        processor.enqueue(helped, 0, helped.take_without_waiting)
        processor.help()
    assert helped.by == [threading.get_ident()]
    assert looks.wait(TIMEOUT_S)
    with monkeypatch.context() as within:
        woken = list[bool]()
        within.setattr(arrived, "notify", lambda: woken.append(True))
        processor.enqueue(left, 0, left.take_without_waiting)
        assert woken == []
    assert left.done.wait(TIMEOUT_S)
    assert left.by == [processor._thread.ident]


def test_an_interrupt_at_any_instruction_leaves_lent_work_done_or_queued(failures: Failures) -> None:
    """And the processor goes on."""

    def attempt() -> Callable[[], None]:
        turns, lane = CpuProcessor(3, 1, failures.take, Stepper()), Lane()
        turns.enqueue(lane, 0, lane.take_without_waiting)

        def check() -> None:
            assert not turns._busy
            assert len(lane.by) + len(turns._queue) == 1
            turns.help()
            assert len(lane.by) == 1

        checks.append(check)
        return turns.help

    checks = list[Callable[[], None]]()
    for _ in interruptions(attempt, {Processor.help.__code__, Hold.__enter__.__code__, Hold.__exit__.__code__}):
        checks.pop()()


def test_work_that_pauses_goes_on_in_a_later_turn(turns: CpuProcessor, failures: Failures) -> None:
    came, took = threading.Event(), list[str]()

    def work() -> object:
        took.append("a turn")
        return None if came.is_set() else came.is_set

    def fails() -> None:
        raise KeyError("lost")

    turns.enqueue(work, 0)
    turns.enqueue(fails, 0)
    assert turns.turn()
    assert not turns.turn()
    came.set()
    assert turns.turn()
    assert took == ["a turn"] * 2
    assert turns.turn()
    assert [type(error) for error in failures] == [KeyError]
    assert not turns.turn()
