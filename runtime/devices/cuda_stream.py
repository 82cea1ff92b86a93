"""Streams of a CUDA device: work that is submitted, its ends, and when they were.

A call submits work as torch and numba do: kernels are put into a stream, and the host goes on. Ends are waited for in
their order, and told to whoever asked: by one thread per stream, or by a program that has nothing else to do and so
spares itself being woken (`attend`). What the work uses is held until then, so no memory is used again too early.

A failure is known in three ways: a body that raises fails its own end and all that its stream is given later, on this
thread; work of another stream that comes after such an end fails where it is submitted; and what fails on the device
fails whatever waits for it.

Ends have times of the device's clock only while somebody records. Those are a distance from an origin, which torch
gives in single precision; so an end becomes the next origin once the one before it is a second old:

    origin      0 s                    1.2 s (an end)          2.3 s (an end)
    ends        .2 .5 .9               1.3 1.7 2.1             2.5
    apart by    at least 60 ns         the same                the same         (62 us of an origin 10 minutes old)
"""

from __future__ import annotations

import threading
from collections import deque
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple, final

import torch

from maniple.process.error import RunError
from maniple.process.interruption import hold_interrupts
from maniple.process.torch_internals import on_stream
from maniple.runtime.devices.device import Stream
from maniple.runtime.devices.event import Event, Signal
from maniple.runtime.devices.pinned_rows import PINNED_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__: list[str] = []


class _Origin(NamedTuple):
    """An event whose time is known.

    Args:
        event: the event.
        time_ns: when it was, on the clock of this process.
    """

    event: torch.cuda.Event
    time_ns: int

    def time_of(self, event: torch.cuda.Event) -> int:
        """The time of another event."""
        return self.time_ns + int(1e6 * self.event.elapsed_time(event))


@final
class CudaEvent(Signal):
    """The end of work in a stream, which other streams can wait for without the host.

    Args:
        end: recorded after the work.
        failure: what was known, when it was submitted, to keep the work from being done.
        begin: recorded before it; None where it is not timed.
        origin: that its times are told from; None where it is not timed.
    """

    __slots__ = ("begin", "end", "failure", "origin")

    def __init__(
        self,
        end: torch.cuda.Event,
        failure: BaseException | None,
        begin: torch.cuda.Event | None,
        origin: _Origin | None,
    ) -> None:
        super().__init__()
        self.end = end
        self.failure = failure
        self.begin = begin
        self.origin = origin


class _Submitted(NamedTuple):
    """What is to be told of, with the work, which is held until then."""

    event: CudaEvent
    work: Callable[[], object]


# How long an end lies that the program is expected to wait for, and how often the thread looks for one in vain.
LOOK_S = 0.01
LOOKS = 10

_LOST = "CUDA error", "CUDA driver error"
"""How torch begins to tell of a device that has failed; a library of CUDA's that refuses a call is told likewise."""

RENEW_NS = 1_000_000_000
"""How old the origin of times may be: times a second away are 60 ns apart in single precision of milliseconds."""


@final
class DeviceClock:
    """The origin that all streams of a device tell times from, so that times of two of them compare.

    Args:
        timed: says whether ends are to have times.
    """

    def __init__(self, timed: Callable[[], bool] = lambda: False) -> None:
        self._timed = timed
        self._origin: _Origin | None = None
        self._lock = threading.Lock()

    def origin(self, record: Callable[[], torch.cuda.Event]) -> _Origin | None:
        """Give the origin, or None while nothing is timed.

        Args:
            record: records an event whose time is found by waiting for it: whoever begins to record has waited for all
                work already.
        """
        if not self._timed():
            self._origin = None
            return None
        with self._lock:
            if self._origin is None:
                event = record()
                event.synchronize()
                self._origin = _Origin(event, perf_counter_ns())
            return self._origin

    def tell(self, event: CudaEvent) -> None:
        """Give an end that is over its times, and let it be its origin's heir once that is old."""
        origin = event.origin
        if event.begin is None or origin is None:
            return
        event.begun_ns, event.ended_ns = origin.time_of(event.begin), origin.time_of(event.end)
        if event.ended_ns - origin.time_ns > RENEW_NS:
            with self._lock:
                if self._origin is origin:
                    self._origin = _Origin(event.end, event.ended_ns)


def _event(*, timed: bool) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=timed, blocking=True)  # type: ignore[no-untyped-call]


@final
class CudaStream(Stream):
    """A stream of a CUDA device; see `Stream`.

    It counts what it was given: `begun`, from before the work is submitted, and `ended`.

    Args:
        device: the device.
        name: of the thread that waits for ends.
        clock: of the device.
    """

    def __init__(self, device: torch.device, name: str, clock: DeviceClock) -> None:
        self.torch = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.begun = 0
        self.ended = 0
        self._device = device
        self._name = name
        self._clock = clock
        self._failure: BaseException | None = None
        self._line: deque[_Submitted] = deque()
        self._arrived = threading.Condition()
        self._telling = threading.Lock()
        self._closed = False
        self._looks = 0  # how often the thread will look before it sleeps until it is woken
        self.after: deque[torch.cuda.Event] = deque()
        """What the next work comes after, beside its events: whoever puts it there must not touch the stream, which
        another thread may be capturing."""
        PINNED_ROWS.attend(self)
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], object], events: Iterable[Event] = ()) -> Event:
        """See `Stream.submit`; events of the host are waited for on this thread."""
        begin, origin, begun_ns = None, None, perf_counter_ns()
        self.begun += 1
        try:
            origin = self._clock.origin(lambda: self._record(timed=True))
            self._come_after(events)
            begin = None if origin is None else self._record(timed=True)
            if self._failure is None:
                self._issue(work)
        except BaseException as error:  # noqa: BLE001  (told to whoever waits; what follows does not run)
            self._failure = self._failure or self._named(error)
        submitted = CudaEvent(self._end(timed=origin is not None), self._failure, begin, origin)
        submitted.begun_ns = begun_ns
        with self._arrived:
            self._line.append(_Submitted(submitted, work))
            if not (self._looks and getattr(work, "attended", False)):
                self._arrived.notify()
        return submitted

    def attend(self, event: Event) -> None:
        """See `Stream.attend`."""
        with self._arrived:
            if not self._looks:
                self._arrived.notify()  # it slept until it is woken; from now on it looks by itself
            self._looks = LOOKS
        while not event.done:
            with self._telling:
                if event.done or not self._line:
                    return
                error = self._await_first()
                with hold_interrupts():
                    self._tell(error)

    def _issue(self, work: Callable[[], object]) -> None:
        if getattr(work, "bare", False):
            with on_stream(self.torch):
                work()
        else:
            with torch.cuda.stream(self.torch), self._device:
                work()

    def _come_after(self, events: Iterable[Event]) -> None:
        while self.after:
            self.torch.wait_event(self.after.popleft())
        for event in events:
            if not isinstance(event, CudaEvent):
                event.wait()
            elif event.failure is not None:
                raise event.failure
            elif not event.done:
                self.torch.wait_event(event.end)
            elif event.error is not None:
                raise event.error

    def _record(self, *, timed: bool) -> torch.cuda.Event:
        event = _event(timed=timed)
        event.record(self.torch)
        return event

    def _end(self, *, timed: bool) -> torch.cuda.Event:
        """An event behind the work; of a device that was lost one that nobody records, which is over at once."""
        try:
            return self._record(timed=timed)
        except RuntimeError as error:
            self._failure = self._failure or self._named(error)
            return _event(timed=timed)

    def _named(self, error: BaseException) -> BaseException:
        """A failure as it is told: with the next step where it is the device's, and not the work's own."""
        told = str(error).partition("\n")[0]
        if isinstance(error, torch.OutOfMemoryError):
            found = RunError(
                f"{self._name}: a task found no room on the device beside its instances ({told}); give instances less "
                "with --memory, or search with --costs measured, which knows what bodies take"
            )
        elif isinstance(error, RuntimeError) and told.startswith(_LOST) and "CUBLAS" not in told:
            found = self._lost(told)
        else:
            return error
        found.__cause__ = error
        return found

    def _lost(self, told: str) -> RunError:
        return RunError(
            f"{self._name}: the device failed ({told}); which kernel did is not known: run with CUDA_LAUNCH_BLOCKING=1 "
            "in the environment to have it said where it is launched. This process cannot use the device any more"
        )

    def _await_first(self) -> BaseException | None:
        """Wait for the first end in the line; gives why it failed."""
        event = self._line[0].event
        try:
            event.end.synchronize()
            self._clock.tell(event)
        except Exception as error:  # noqa: BLE001  (a kernel failed; told to whoever waits)
            failure = self._lost(str(error).partition("\n")[0])
            failure.__cause__ = error
            self._failure = self._failure or failure
            return event.failure or failure
        return event.failure

    def _tell(self, error: BaseException | None) -> None:
        event = self._line.popleft().event  # and let go of what the work holds, before anybody is told
        self.ended += 1
        event.set(error)

    def _watch(self) -> None:
        while self._awaits_one():
            with self._telling:
                if self._line:
                    self._tell(self._await_first())
        PINNED_ROWS.leave(self)  # not sooner: until its work has ended it may be at any row

    def _awaits_one(self) -> bool:
        """Wait until something is in the line; says whether there is."""
        with self._arrived:
            while not self._line and not self._closed:
                if not self._arrived.wait(LOOK_S if self._looks else None):
                    self._looks -= 1
            return bool(self._line)

    def close(self) -> None:
        """End the thread, once all that was submitted has ended."""
        with self._arrived:
            self._closed = True
            self._arrived.notify()
