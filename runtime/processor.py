"""Processors: threads that are given tasks one after another, and do them or submit them to a device."""

from __future__ import annotations

import heapq
import threading
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import TYPE_CHECKING, Protocol, final

import torch

from maniple.runtime.event import DONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maniple.runtime.device import Device
    from maniple.runtime.event import Event

__all__: list[str] = []


_here = threading.local()


def inside_task() -> bool:
    """Say whether this thread is a processor's or a stream's, and so inside a task's body."""
    return getattr(_here, "inside", False)


def enter_task(cores: int) -> None:
    """Make this thread one that runs the bodies of tasks.

    Args:
        cores: torch's intra-op threads.
    """
    _here.inside = True
    torch.set_num_threads(cores)
    torch.set_grad_enabled(False)


class Work(Protocol):
    """Something a processor's thread does: its share of a step, or one task."""

    def __call__(self) -> None:
        """Run to the end; failures are handled inside, except a bug of the runtime's."""
        ...


class Processor(ABC):
    """A processor of this rank: a thread with a queue of work, which submits tasks.

    Args:
        id: the processor, as the machine numbers it.
        cores: how many cores its thread owns.
        failed: called with an exception that escaped from work.
    """

    @property
    def device(self) -> Device | None:
        """The device that is this processor's; None where it is a CPU."""
        return None

    @property
    def compiles(self) -> bool:
        """Whether every variant for its kind of processor runs on it."""
        return self.device is None or self.device.compiles

    def __init__(self, id: int, cores: int, failed: Callable[[BaseException], None]) -> None:  # noqa: A002
        self.id = id
        self.cores = cores
        self._failed = failed
        self._queue: list[tuple[int, int, Work]] = []
        self._numbers = count()
        self._arrived = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"processor {id}", daemon=True)
        self._thread.start()

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

    def enqueue(self, work: Work, priority: int) -> None:
        """Queue work for the thread; greater priority runs first, then what came first."""
        with self._arrived:
            heapq.heappush(self._queue, (-priority, next(self._numbers), work))
            self._arrived.notify()

    def close(self) -> None:
        """End the thread after the work at hand; queued work is dropped."""
        with self._arrived:
            self._closed = True
            self._queue.clear()
            self._arrived.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        enter_task(self.cores)
        while True:
            with self._arrived:
                while not self._queue and not self._closed:
                    self._arrived.wait()
                if self._closed:
                    return
                work = heapq.heappop(self._queue)[2]
            try:
                work()
            except BaseException as error:  # noqa: BLE001  (a thread's failure belongs to the rank)
                self._failed(error)
            del work  # and the storage that it refers to, which may be let go of before there is more to do


@final
class CpuProcessor(Processor):
    """A CPU processor: its thread runs tasks itself, with torch's intra-op threads set to its cores."""

    def submit(self, task: Callable[[], object], events: Iterable[Event] = ()) -> Event:
        """See `Processor.submit`; what comes back is done."""
        for event in events:
            event.wait()
        task()
        return DONE


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
