"""Processors: threads that are given tasks one after another, and do them or submit them to a device.

Waking a thread, and being woken when it is done, costs as much as a short lane. So work that any thread may do is
done by the program's own if that comes to wait for it before the processor's thread has begun. Where that happens the
processor's thread looks for such work now and then and is not woken for it:

    program's thread    enqueue, wait: does it   enqueue, wait: does it   enqueue, computes for 10 ms ...
    processor's thread  woken, nothing to do     looks every 10 ms        looks, does it, sleeps until it is woken
"""

from __future__ import annotations

import heapq
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from typing import TYPE_CHECKING, Protocol, cast, final

import torch

from maniple.process.interruption import hold_interrupts
from maniple.runtime.devices.event import DONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from maniple.runtime.control.stepper import Stepper
    from maniple.runtime.devices.device import Device
    from maniple.runtime.devices.event import Event

__all__: list[str] = []

# How long work may lie that a waiting program is expected to do, and how often a thread looks for it in vain.
LOOK_S = 0.01
LOOKS = 10

_here = threading.local()
_SETTING = threading.Lock()


def inside_task() -> bool:
    """Say whether this thread is a processor's or a stream's, and so inside a task's body."""
    return getattr(_here, "inside", False)


def enter_task(cores: int) -> None:
    """Make this thread one that runs the bodies of tasks.

    Args:
        cores: torch's intra-op threads.
    """
    _here.inside = True
    _set_own_threads(cores)
    torch.set_grad_enabled(False)


def _set_own_threads(cores: int) -> None:
    """Set torch's intra-op threads for this thread, and for no other.

    What a thread sets is also what threads get that begin later, when they first ask; so another one sets that back.
    """
    with _SETTING:
        before = torch.get_num_threads()
        if before == cores:
            return
        torch.set_num_threads(cores)
        back = threading.Thread(target=torch.set_num_threads, args=(before,), name="threads of others")
        back.start()
        back.join()


@contextmanager
def run_as_task() -> Iterator[None]:
    """Make this thread one that runs the bodies of tasks, inside; torch's intra-op threads stay as they are.

    A body is refused what only the program may do, and autograd notes nothing of it. On a thread that is one already
    this changes nothing.
    """
    before = inside_task()
    _here.inside = True
    try:
        with torch.no_grad():
            yield
    finally:
        _here.inside = before


class Work(Protocol):
    """Something a processor's thread does: its share of a step, or one task."""

    def __call__(self) -> object:
        """Run to the end; failures are handled inside, except a bug of the runtime's.

        Returns:
            Where nothing may block, what says whether it can go on, to be called again then; at its end None.
        """
        ...


AnyThreadWork = Callable[[], bool]
"""Does work as far as it goes without waiting, on any thread; says whether it is done."""


class Processor(ABC):
    """A processor of this rank: a thread with a queue of work, which submits tasks.

    Args:
        id: the processor, as the machine numbers it.
        cores: how many cores its thread owns.
        failed: called with an exception that escaped from work.
        stepper: gives it turns; None where it has a thread.
    """

    @property
    def device(self) -> Device | None:
        """The device that is this processor's; None where it is a CPU."""
        return None

    @property
    def compiles(self) -> bool:
        """Whether every variant for its kind of processor runs on it."""
        return self.device is None or self.device.compiles

    def __init__(
        self,
        id: int,  # noqa: A002
        cores: int,
        failed: Callable[[BaseException], None],
        stepper: Stepper | None = None,
    ) -> None:
        self.id = id
        self.cores = cores
        self._failed = failed
        self._queue: list[tuple[int, int, Work, AnyThreadWork | None]] = []
        self._numbers = count()
        self._arrived = threading.Condition()
        self._closed = False
        self._busy = False
        self.begun = 0
        self._looks = 0  # how often the thread will look before it sleeps until it is woken
        self._looking = False
        self._stepper = stepper
        self._paused: tuple[Work, Callable[[], bool]] | None = None
        self._thread = threading.Thread(target=self._run, name=f"processor {id}", daemon=True)
        if stepper is None:
            self._thread.start()
        else:
            stepper.add(self.turn)

    @property
    def busy(self) -> bool:
        """Whether somebody does this processor's work now."""
        return self._busy

    @abstractmethod
    def submit(self, task: Callable[[], object], events: Iterable[Event] = ()) -> Event:
        """Run a task, or have the device run it; on this processor's thread.

        Args:
            task: a bound body.
            events: what it comes after.

        Returns:
            Its end: that the call returned says nothing.
        """

    def binding(self) -> AbstractContextManager[object]:
        """Bind bodies for this processor inside."""
        return nullcontext()

    def apart(self) -> AbstractContextManager[Processor]:
        """Have one like this inside, for bodies that are tried, whose thread, if it can have one of its own, then ends.

        A thread has a heap of its own. What is small and stays between what a trial has freed would leave holes in it
        that are too small for the same bodies when they run, so that a step would take more than they do.
        """
        return nullcontext(self)

    def enqueue(self, work: Work, priority: int, on_any_thread: AnyThreadWork | None = None) -> None:
        """Queue work for the thread; greater priority runs first, then what came first.

        Args:
            work: what to do.
            priority: how much it matters.
            on_any_thread: the same where any thread may do it.
        """
        with self._arrived:
            heapq.heappush(self._queue, (-priority, next(self._numbers), work, on_any_thread))
            if on_any_thread is None or not self._looking:
                self._arrived.notify()

    def help(self) -> None:
        """Do on this thread, which waits, what is queued first, if any thread may do it."""
        if self._busy or not self._queue:  # whoever is busy looks at the queue again
            return
        with hold_interrupts():
            with self._arrived:
                on_any_thread = self._queue[0][3] if self._queue and not self._busy else None
                if on_any_thread is None:
                    return
                first = heapq.heappop(self._queue)
                self._busy = True
                self.begun += 1
                self._looks = LOOKS
            done = False
            try:
                done = on_any_thread()
            finally:
                with self._arrived:
                    self._busy = False
                    if not done:
                        heapq.heappush(self._queue, first)
                    if self._queue:
                        self._arrived.notify()

    def turn(self) -> bool:
        """Do what can be done of the work at hand without waiting; says whether that was anything."""
        if self._paused is not None:
            work, goes_on = self._paused
            if not goes_on():
                return False
        elif self._queue:
            work = heapq.heappop(self._queue)[2]
        else:
            return False
        self._paused = None
        try:
            with run_as_task():
                pause = work()
        except Exception as error:  # noqa: BLE001  (as for a thread)
            self._failed(error)
        else:
            self._paused = None if pause is None else (work, cast("Callable[[], bool]", pause))
        return True

    def close(self) -> None:
        """End the thread after the work at hand; queued work is dropped."""
        with self._arrived:
            self._closed = True
            self._queue.clear()
            self._arrived.notify()
        if self._stepper is not None:
            self._stepper.remove(self.turn)
        elif threading.current_thread() is not self._thread:
            self._thread.join()

    def _next(self) -> Work | None:
        """Wait for work and take it; None at the end."""
        with self._arrived:
            while not self._closed and (self._busy or not self._queue):
                self._looking = self._looks > 0
                if not self._arrived.wait(LOOK_S if self._looking else None):
                    self._looks -= 1
            self._looking = False
            self._looks = 0
            self._busy = True
            self.begun += 1
            return None if self._closed else heapq.heappop(self._queue)[2]

    def _run(self) -> None:
        enter_task(self.cores)
        while (work := self._next()) is not None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  (a thread's failure belongs to the rank)
                self._failed(error)
            del work  # and the storage that it refers to, which may be let go of before there is more to do
            with self._arrived:
                self._busy = False


@final
class CpuProcessor(Processor):
    """A CPU processor: its thread runs tasks itself, with torch's intra-op threads set to its cores."""

    def submit(self, task: Callable[[], object], events: Iterable[Event] = ()) -> Event:
        """See `Processor.submit`; what comes back is done."""
        for event in events:
            event.wait()
        task()
        return DONE

    @contextmanager
    def apart(self) -> Iterator[Processor]:
        """See `Processor.apart`; a stepper's processors have no threads."""
        if self._stepper is not None:
            yield self
            return
        made = CpuProcessor(self.id, self.cores, self._failed)
        try:
            yield made
        finally:
            made.close()


@final
class GpuProcessor(Processor):
    """A GPU processor: its thread submits tasks to a device's stream and goes on.

    Args:
        id: the processor, as the machine numbers it.
        device: the device, which is this processor's alone.
        failed: called with an exception that escaped from work.
    """

    def __init__(self, id: int, device: Device, failed: Callable[[BaseException], None]) -> None:  # noqa: A002
        self._device = device
        super().__init__(id, 1, failed)

    @property
    def device(self) -> Device:
        """The device that is this processor's."""
        return self._device

    def submit(self, task: Callable[[], object], events: Iterable[Event] = ()) -> Event:
        """See `Processor.submit`; the device's streams wait for the events, not this thread."""
        return self.device.tasks.submit(task, events)

    def binding(self) -> AbstractContextManager[object]:
        """See `Processor.binding`."""
        return self.device.binding()

    def close(self) -> None:
        """See `Processor.close`; the device ends too."""
        super().close()
        self.device.close()
