"""The null device: work is late and in order, its memory is nobody else's, and failures stop what follows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from maniple.process.error import RunError
from maniple.runtime.devices.device import Refused
from maniple.runtime.devices.event import DONE, Hear, Signal, when_all
from maniple.runtime.devices.null_device import NullDevice, NullTensor


@pytest.fixture
def device() -> Iterator[NullDevice]:
    made = NullDevice(0, 1 << 20)
    yield made
    made.close()


def test_work_runs_in_order_and_after_its_events(device: NullDevice) -> None:
    ran: list[str] = []
    gate = Signal()
    first = device.tasks.submit(lambda: ran.append("first"), [gate])
    second = device.tasks.submit(lambda: ran.append("second"))
    third = device.arrivals.submit(lambda: ran.append("third"), [first])
    assert [first.done, second.done, third.done] == [False] * 3
    gate.set()
    second.wait()
    third.wait()
    assert [name for name in ran if name != "third"] == ["first", "second"]
    assert ran.index("third") > ran.index("first")
    assert first.begun_ns <= first.ended_ns <= third.begun_ns


class NeverComes(Signal):
    """An event that nobody sets, as the end of work that was dropped; says when somebody waits for it."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def wait(self) -> None:
        self.asked.set()
        super().wait()

    def then(self, hear: Hear) -> None:
        self.asked.set()
        super().then(hear)


def test_a_stream_that_is_closed_waits_for_nothing_any_more() -> None:
    before, event = threading.enumerate(), NeverComes()
    device = NullDevice(1, 1 << 20)
    device.tasks.submit(lambda: None, [event])
    assert event.asked.wait(30.0)
    device.close()
    for thread in threading.enumerate():
        if thread not in before:
            thread.join(30.0)
            assert not thread.is_alive()


def test_nothing_begins_while_the_device_is_paused(device: NullDevice) -> None:
    told: list[BaseException | None] = []
    with device.pause():
        ends = [stream.submit(lambda: None) for stream in (device.tasks, device.arrivals, device.departures)]
        when_all(ends, told.append)
        assert not any(end.done for end in ends)
        assert told == []
    for end in ends:
        end.wait()
    assert told == [None]
    when_all([DONE], told.append)
    assert told == [None, None]


def test_streams_overtake_each_other() -> None:
    ran: list[str] = []
    device = NullDevice(3, 1 << 10)
    ends = []
    for number in range(20):
        ends += [
            getattr(device, name).submit(lambda name=name, number=number: ran.append(f"{name} {number}"))
            for name in ("tasks", "arrivals")
        ]
    for end in ends:
        end.wait()
    device.close()
    for name in ("tasks", "arrivals"):
        assert [entry for entry in ran if entry.startswith(name)] == [f"{name} {number}" for number in range(20)]
    assert ran != [f"{name} {number}" for number in range(20) for name in ("tasks", "arrivals")]


def test_the_host_does_not_see_the_memory(device: NullDevice) -> None:
    storage = device.allocate((4, 3), torch.float32)
    part = storage[1:3].permute(1, 0)
    assert (part.shape, part.stride(), part.dtype, part.ndim) == ((3, 2), (1, 3), torch.float32, 2)
    for look in (storage.sum, storage.numpy, storage.tolist, storage[0, 0].item, lambda: storage.fill_(1)):
        with pytest.raises(RunError, match="outside of its streams"):
            look()
    with pytest.raises(RunError, match="outside of its streams"):
        torch.zeros(4, 3).copy_(storage)


def test_what_was_never_written_is_poison(device: NullDevice) -> None:
    reals, numbers = device.allocate((2,), torch.float64), device.allocate((2,), torch.int64)
    found: list[object] = []
    device.tasks.submit(lambda: found.extend([bool(reals.isnan().all()), numbers.tolist()])).wait()
    assert found == [True, [-1, -1]]


def test_a_body_works_on_what_is_on_the_device(device: NullDevice) -> None:
    storage = device.allocate((4,), torch.float32)
    kinds: list[type] = []

    def body() -> None:
        made = torch.arange(4.0)
        kinds.append(type(made))
        storage.copy_(made)
        storage.mul_(2)

    device.tasks.submit(body).wait()
    host = torch.zeros(4)
    device.departures.submit(lambda: host.copy_(storage)).wait()
    assert (kinds, host.tolist()) == ([NullTensor], [0.0, 2.0, 4.0, 6.0])
    far = torch.ones(4)
    with pytest.raises(RunError, match="on a null device and on the host"):
        device.arrivals.submit(lambda: storage + far).wait()


def test_what_follows_a_failure_does_not_run(device: NullDevice) -> None:
    ran: list[str] = []

    def broken() -> None:
        raise ValueError("no good")

    first = device.tasks.submit(broken)
    second = device.tasks.submit(lambda: ran.append("second"))
    third = device.arrivals.submit(lambda: ran.append("third"), [second])
    for end in (first, second, third):
        with pytest.raises(ValueError, match="no good"):
            end.wait()
    assert ran == []


def test_memory_has_an_end_and_is_used_again() -> None:
    device = NullDevice(0, 100)
    first = device.allocate((20,), torch.float32)
    with pytest.raises(RunError, match="has no room for 40 bytes: 80 of 100 are in use"):
        device.allocate((10,), torch.float32)
    del first
    device.allocate((25,), torch.float32)
    assert device.room.peak == 100
    device.close()


def test_work_in_a_stream_of_one_device_does_not_compute_with_memory_of_another(device: NullDevice) -> None:
    """On CUDA it would run in the other device's default stream, which has waited for nothing."""
    other = NullDevice(1, 1 << 20)
    ours, theirs = device.allocate((4, 4), torch.float32), other.allocate((4, 4), torch.float32)
    other.tasks.submit(lambda: theirs.fill_(3.0)).wait()
    device.arrivals.submit(lambda: ours.copy_(theirs)).wait()  # torch has both wait for each other
    for broken in (lambda: ours.copy_(theirs.t()), lambda: ours.add_(theirs), lambda: theirs[:, 1].mul(2)):
        failing = NullDevice(2, 1 << 20)
        with pytest.raises(RunError, match="would run in that device's current stream, which waited for nothing"):
            failing.arrivals.submit(broken).wait()
        failing.close()
    other.close()


def test_what_is_captured_is_issued_again_as_one_launch(device: NullDevice) -> None:
    x, row = device.allocate((4,), torch.float32), device.stage(4, torch.float32)
    device.tasks.submit(lambda: x.fill_(0))
    parts = [lambda: x.add_(1), lambda: x.mul_(2)]
    found: list[object] = []
    device.tasks.submit(lambda: found.append(device.capture(parts))).wait()
    (graph,) = found
    assert callable(graph)
    device.tasks.submit(graph)
    device.tasks.submit(lambda: row.copy_(x)).wait()
    assert row.tolist() == [6.0] * 4
    assert graph.launches == 1  # type: ignore[attr-defined]


def test_what_cannot_be_captured_runs_and_is_refused_with_the_reason(device: NullDevice) -> None:
    x = device.allocate((4,), torch.float32)
    device.tasks.submit(lambda: x.fill_(0))
    found: list[object] = []
    parts = [lambda: x.add_(1), lambda: found.append(float(x.sum())), lambda: x.add_(1)]
    device.tasks.submit(lambda: found.append(device.capture(parts))).wait()
    assert found[0] == 4.0
    assert found[1] == Refused(1, "float() brings values to the host, which waits for the stream")


def test_a_captured_segment_that_does_something_else_later_fails(device: NullDevice) -> None:
    """A number of the program's that is no region is what it was when it was captured, on a real device silently."""
    x, rate = device.allocate((4,), torch.float32), [0.5]
    device.tasks.submit(lambda: x.fill_(0))
    found: list[Callable[[], object]] = []

    def keep() -> None:
        graph = device.capture([lambda: x.add_(1, alpha=rate[0])])
        assert not isinstance(graph, Refused)
        found.append(graph)

    device.tasks.submit(keep).wait()
    device.tasks.submit(found[0]).wait()
    rate[0] = 0.25
    with pytest.raises(RunError, match=r"part 0 of a captured segment issues other calls .*0\.25.*captured as.*0\.5"):
        device.tasks.submit(found[0]).wait()
