"""Progress: waits for counters of other threads and ranks, and how they end when nothing comes any more."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from maniple.process.error import RunError
from maniple.runtime.lanes import progress
from maniple.runtime.lanes.progress import TABLES, Progress
from maniple.runtime.machine.machine import Machine
from maniple.runtime.transports.shared_memory import SharedMemory, shared_files

TIMEOUT_S = 30.0


def calm() -> None:
    """Nothing has failed."""


def pair(check: Callable[[], None] = calm) -> list[Progress]:
    with shared_files(2) as files:
        memories = [SharedMemory(rank, dict(enumerate(files))) for rank in range(2)]
    found = [Progress(memory, memory.rank, roomy=False, check=check) for memory in memories]
    for one in found:
        one.find_counters(Machine.cpu(2, ranks=2))
    return found


def test_a_rank_sees_the_steps_of_another() -> None:
    first, second = pair()
    taken = threading.Event()

    def wait() -> None:
        second.wait(second.processor(1), 5)
        taken.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    first.publisher(1)(4)
    assert not taken.wait(0.02)
    first.publisher(1)(5)
    assert taken.wait(TIMEOUT_S)
    thread.join(TIMEOUT_S)


def test_every_processor_of_the_host_has_a_counter_of_its_own() -> None:
    first, second = pair()
    for processor in range(4):
        (first if processor < 2 else second).publisher(processor)(processor + 1)
    for one in (first, second):
        for processor in range(4):
            one.wait(one.processor(processor), processor + 1)


def test_a_rank_is_met_when_it_has_begun_and_tells_its_latest_tables() -> None:
    first, second = pair()
    for run in range(1, 10):
        first.begin(run, 1000 + run)
        assert [second.meet(0, seen) for seen in range(max(1, run - TABLES + 1), run + 1)] == [
            1000 + seen for seen in range(max(1, run - TABLES + 1), run + 1)
        ]


@pytest.mark.parametrize("roomy", [True, False])
def test_a_wait_ends_when_the_run_has_failed(roomy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks between its naps, whose lengths grow with the wait and have an end."""
    naps: list[float] = []

    def check() -> None:
        if len(naps) == 40:
            raise RunError("rank 1 is gone")

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        clock[0] += seconds

    clock = [0.0]
    monkeypatch.setattr(progress, "sleep", sleep)
    monkeypatch.setattr(progress, "sleep_until", lambda _, seconds: sleep(seconds))
    monkeypatch.setattr(progress, "perf_counter", lambda: clock.__setitem__(0, clock[0] + 1e-4) or clock[0])
    one = Progress(None, 0, roomy=roomy, check=check)
    one.find_counters(Machine.cpu(2))
    with pytest.raises(RunError, match="gone"):
        one.wait(one.processor(1), 1)
    least, most = progress.NAP_S if roomy else progress.DOZE_S
    assert naps == sorted(naps)
    assert least <= naps[0] < naps[-1] == most


def test_a_processor_that_is_alone_tells_nobody() -> None:
    one = Progress(None, 0, roomy=True, check=calm)
    one.find_counters(Machine.cpu(1))
    assert one.publisher(0)(3) is None
    assert "_counter" not in vars(one)  # nothing compiled was loaded


def test_lanes_that_share_cores_are_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sleep without end ends as the counter is raised: by a lane, or by one whose compiled code has come back."""
    asleep = threading.Semaphore(0)

    def sleep(bell: threading.Lock, _: float) -> None:
        asleep.release()
        bell.acquire(timeout=TIMEOUT_S)

    monkeypatch.setattr(progress, "sleep_until", sleep)
    one = Progress(None, 0, roomy=False, check=calm)
    one.find_counters(Machine.cpu(3))
    woken = [threading.Event() for _ in range(3)]

    def wait(number: int, processor: int, value: int) -> None:
        one.wait(one.processor(processor), value)
        woken[number].set()

    waits = ((0, 1, 3), (1, 1, 4), (2, 2, 1))
    threads = [threading.Thread(target=wait, args=each, daemon=True) for each in waits]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert asleep.acquire(timeout=TIMEOUT_S)
    one.publisher(1)(3)
    assert woken[0].wait(TIMEOUT_S / 2)
    one.publisher(1)(4)
    assert woken[1].wait(TIMEOUT_S / 2)
    assert not woken[2].is_set()
    one._counter.publish(one.processor(2), 1)
    one.ring(one.processor(2))
    assert woken[2].wait(TIMEOUT_S / 2)
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert not one._asleep


def test_only_lanes_that_share_cores_in_one_process_are_rung() -> None:
    assert Progress(None, 0, roomy=False, check=calm).crowded
    assert not Progress(None, 0, roomy=True, check=calm).crowded
    assert not Progress(None, 0, roomy=False, patient=False, check=calm).crowded
    assert not pair()[0].crowded
