"""Streams of CUDA devices over a stand-in for what is used of `torch.cuda`."""

from __future__ import annotations

import threading
from contextlib import nullcontext, suppress

import pytest
import torch

from maniple.process.error import RunError
from maniple.runtime.devices import cuda_stream
from maniple.runtime.devices.cuda_stream import CudaStream, DeviceClock
from maniple.runtime.devices.event import Signal
from maniple.runtime.devices.pinned_rows import PinnedRows

LOG: list[str] = []
ELAPSED: list[tuple[StubEvent, StubEvent]] = []


class StubEvent:
    """An event that is over when its gate opens."""

    gate = threading.Event()

    def __init__(self, *, enable_timing: bool, blocking: bool) -> None:
        assert blocking
        self.timed = enable_timing

    def record(self, stream: StubStream) -> None:
        LOG.append(f"record {stream.name}")

    def synchronize(self) -> None:
        assert self.gate.wait(30)

    def elapsed_time(self, other: StubEvent) -> float:
        assert self.timed
        assert other.timed
        ELAPSED.append((self, other))
        return 1600.0


class StubStream:
    """A stream that writes down what is asked of it."""

    def __init__(self, device: torch.device) -> None:
        self.name = str(device)

    def wait_event(self, event: StubEvent) -> None:
        LOG.append(f"{self.name} waits")


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    LOG.clear()
    StubEvent.gate = threading.Event()
    StubEvent.gate.set()
    monkeypatch.setattr(torch.cuda, "Event", StubEvent)
    monkeypatch.setattr(torch.cuda, "Stream", StubStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(cuda_stream, "on_stream", lambda stream: nullcontext())


@pytest.mark.usefixtures("stub")
def test_submitting_waits_on_streams_and_never_on_the_host() -> None:
    first, second = (CudaStream(torch.device("meta"), name, DeviceClock()) for name in ("first", "second"))
    StubEvent.gate.clear()
    LOG.clear()
    before = first.submit(lambda: LOG.append("work"))
    after = second.submit(lambda: LOG.append("more"), [before])
    assert LOG == ["work", "record meta", "meta waits", "more", "record meta"]
    assert [before.done, after.done] == [False, False]
    StubEvent.gate.set()
    after.wait()
    before.wait()
    assert before.ended_ns > 0
    first.close()
    second.close()


@pytest.mark.usefixtures("stub")
def test_times_are_told_while_something_records_from_an_origin_that_is_renewed() -> None:
    timed = [True]
    stream = CudaStream(torch.device("meta"), "first", DeviceClock(lambda: timed[0]))
    ELAPSED.clear()
    first, second = stream.submit(lambda: None), stream.submit(lambda: None)
    second.wait()
    third = stream.submit(lambda: None)
    third.wait()
    origins = [origin for origin, _ in ELAPSED]
    # Every end is 1.6 s from the origin of when it was submitted, which is old by then: the first is the next origin.
    assert len({id(origin) for origin in origins[:4]}) == 1
    assert origins[4] is first.end  # type: ignore[attr-defined]
    assert third.ended_ns - first.ended_ns == 1_600_000_000
    assert second.ended_ns == first.ended_ns
    timed[0] = False
    LOG.clear()
    last = stream.submit(lambda: LOG.append("work"))
    last.wait()
    assert LOG == ["work", "record meta"]
    assert 0 < last.begun_ns <= last.ended_ns
    stream.close()


@pytest.mark.usefixtures("stub")
def test_a_failure_is_told_and_what_follows_does_not_run() -> None:
    stream = CudaStream(torch.device("meta"), "first", DeviceClock())

    def broken() -> None:
        raise ValueError("no good")

    ends = [stream.submit(broken), stream.submit(lambda: LOG.append("ran"))]
    for end in ends:
        with pytest.raises(ValueError, match="no good"):
            end.wait()
    assert "ran" not in LOG
    stream.close()


@pytest.mark.usefixtures("stub")
def test_what_comes_after_a_failure_on_another_stream_does_not_run_though_nobody_was_told_yet() -> None:
    clock = DeviceClock()
    first, second = (CudaStream(torch.device("meta"), name, clock) for name in ("first", "second"))
    StubEvent.gate.clear()  # the first stream's thread hears of nothing yet

    def broken() -> None:
        raise ValueError("no good")

    after = second.submit(lambda: LOG.append("ran"), [first.submit(broken)])
    StubEvent.gate.set()
    with pytest.raises(ValueError, match="no good"):
        after.wait()
    assert "ran" not in LOG
    first.close()
    second.close()


@pytest.mark.usefixtures("stub")
def test_a_stream_counts_what_it_was_given_from_before_it_is_submitted() -> None:
    stream = CudaStream(torch.device("meta"), "first", DeviceClock())
    StubEvent.gate.clear()
    seen: list[int] = []
    end = stream.submit(lambda: seen.append(stream.begun))
    assert (seen, stream.begun, stream.ended) == ([1], 1, 0)
    StubEvent.gate.set()
    end.wait()
    assert stream.ended == 1
    stream.close()


@pytest.mark.usefixtures("stub")
def test_events_of_the_host_are_waited_for_where_work_is_submitted() -> None:
    stream, host = CudaStream(torch.device("meta"), "first", DeviceClock()), Signal()
    host.set()
    stream.submit(lambda: LOG.append("work"), [host]).wait()
    assert LOG.count("work") == 1
    stream.close()


class Attended:
    """Work whose end its submitter attends to, and that needs no device to make tensors on."""

    bare = attended = True

    def __call__(self) -> None:
        LOG.append("work")


@pytest.mark.usefixtures("stub")
def test_who_attends_tells_on_its_own_thread_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_stream, "LOOK_S", 30.0)  # the stream's thread looks when this test is over
    stream = CudaStream(torch.device("meta"), "first", DeviceClock())
    stream.attend(stream.submit(Attended()))
    told: list[tuple[int, int]] = []
    ends = [stream.submit(Attended()) for _ in range(3)]
    for number, end in enumerate(ends):
        end.then(lambda _, number=number: told.append((number, threading.get_ident())))
    assert not any(end.done for end in ends)
    stream.attend(ends[1])
    assert [end.done for end in ends] == [True, True, False]
    stream.attend(ends[2])
    assert told == [(number, threading.get_ident()) for number in range(3)]
    assert (stream.begun, stream.ended) == (4, 4)
    stream.close()


@pytest.mark.usefixtures("stub")
def test_what_nobody_attends_to_is_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_stream, "LOOK_S", 0.001)
    stream = CudaStream(torch.device("meta"), "first", DeviceClock())
    stream.attend(stream.submit(Attended()))
    for _ in range(20):
        stream.submit(Attended()).wait()
    stream.close()


@pytest.mark.usefixtures("stub")
def test_who_is_interrupted_while_it_attends_loses_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_stream, "LOOK_S", 30.0)
    stream = CudaStream(torch.device("meta"), "first", DeviceClock())
    stream.attend(stream.submit(Attended()))
    end = stream.submit(Attended())

    def interrupted(event: StubEvent) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(StubEvent, "synchronize", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.attend(end)
    assert not end.done
    stream.attend(end)
    assert end.done
    stream.close()


@pytest.mark.usefixtures("stub")
def test_what_others_put_before_work_is_waited_for_once_by_who_submits() -> None:
    stream = CudaStream(torch.device("meta"), "first", DeviceClock())
    event = StubEvent(enable_timing=False, blocking=True)
    stream.after.append(event)  # type: ignore[arg-type]
    assert LOG == []
    stream.submit(Attended()).wait()
    stream.submit(Attended()).wait()
    assert LOG == ["meta waits", "work", "record meta", "work", "record meta"]
    stream.close()


@pytest.mark.usefixtures("stub")
def test_a_kernel_that_fails_is_told_with_what_to_do_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(event: StubEvent) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered\nSearch for it in the manual")

    monkeypatch.setattr(StubEvent, "synchronize", broken)
    stream = CudaStream(torch.device("meta"), "cuda:0: tasks", DeviceClock())
    wanted = r"^cuda:0: tasks: the device failed \(CUDA error: device-side assert triggered\); .*CUDA_LAUNCH_BLOCKING=1"
    with pytest.raises(RunError, match=wanted):
        stream.submit(lambda: None).wait()
    with pytest.raises(RunError, match=wanted):
        stream.submit(lambda: LOG.append("ran")).wait()
    assert "ran" not in LOG
    stream.close()


@pytest.mark.usefixtures("stub")
def test_rows_heed_a_stream_that_is_closed_until_its_work_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = PinnedRows(lambda size: torch.zeros(size, dtype=torch.uint8))
    monkeypatch.setattr(cuda_stream, "PINNED_ROWS", rows)
    stream = CudaStream(torch.device("meta"), "first", DeviceClock())
    StubEvent.gate.clear()
    row = rows.take((8,), torch.float32)
    where = row.data_ptr()
    end = stream.submit(lambda: None)
    stream.close()
    del row
    assert rows.take((8,), torch.float32).data_ptr() != where
    StubEvent.gate.set()
    end.wait()
    stream._thread.join(30)
    again = [rows.take((8,), torch.float32) for _ in range(2)]
    assert where in [each.data_ptr() for each in again]
    assert rows._streams == ()


@pytest.mark.usefixtures("stub")
def test_a_device_that_is_lost_fails_what_is_submitted_and_never_who_submits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even an event can be recorded any more; what was submitted before and what comes later say the same."""
    stream = CudaStream(torch.device("meta"), "cuda:0: tasks", DeviceClock())
    StubEvent.gate.clear()
    before = stream.submit(lambda: None)

    def lost(event: StubEvent, *given: object) -> None:
        raise RuntimeError("CUDA error: the launch timed out and was terminated\nCUDA kernel errors might be ...")

    monkeypatch.setattr(StubEvent, "record", lost)
    after = [stream.submit(lambda: LOG.append("ran")) for _ in range(2)]
    monkeypatch.setattr(StubEvent, "synchronize", lost)
    StubEvent.gate.set()
    wanted = r"^cuda:0: tasks: the device failed \(CUDA error: the launch timed out and was terminated\); "
    for end in after:
        with pytest.raises(RunError, match=wanted):
            end.wait()
    with suppress(RunError):  # whether it was over by then nobody knows
        before.wait()
    assert LOG.count("ran") <= 1  # the first was issued before anybody could tell
    stream.close()


@pytest.mark.parametrize(
    ("raised", "wanted"),
    [
        (RuntimeError("CUDA error: an illegal memory access\nmore"), r"device failed \(CUDA error: an illegal mem"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), r"found no room .*2 GiB\); .*--memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED"), "^CUDA error: CUBLAS_STATUS_NOT_SUPPORTED$"),
        (ValueError("no good"), "^no good$"),
    ],
)
@pytest.mark.usefixtures("stub")
def test_what_a_body_raises_is_told_with_the_next_step_where_it_is_the_devices(raised: Exception, wanted: str) -> None:
    stream = CudaStream(torch.device("meta"), "cuda:0: tasks", DeviceClock())

    def body() -> None:
        raise raised

    with pytest.raises(Exception, match=wanted) as told:
        stream.submit(body).wait()
    assert raised in (told.value, told.value.__cause__)
    stream.close()
