"""The host as a device: memory of the host, and streams that have done their work when a submission returns.

`HostDevice` is the simplest device that there is, and a base for one whose memory alone is special.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from math import prod
from time import perf_counter_ns
from typing import TYPE_CHECKING, final

from maniple.runtime.devices.device import Device, Stream
from maniple.runtime.devices.event import Event, Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch

    from maniple.process.taken_memory import Taken

__all__: list[str] = []

# torch is imported where it is needed: the launcher, which asks for `Cpu.check`, goes without.


@final
class InlineStream(Stream):
    """A stream that does work on the thread that submits it, one piece at a time."""

    def __init__(self) -> None:
        self._failure: BaseException | None = None
        self._turn = threading.Lock()

    def submit(self, work: Callable[[], object], events: Iterable[Event] = ()) -> Event:
        """See `Stream.submit`; events that are not done yet are waited for."""
        end = Signal()
        with self._turn:
            try:
                for event in events:
                    event.wait()
                if self._failure is None:
                    end.begun_ns = perf_counter_ns()
                    _run(work)
            except BaseException as error:  # noqa: BLE001  (told to whoever waits; what follows does not run)
                self._failure = self._failure or error
            end.set(self._failure)
        return end


class HostDevice(Device):
    """A device whose memory is the host's; see `Device`."""

    forks = True

    def __init__(self, local: int, capacity: int, name: str = "") -> None:
        super().__init__(local, capacity, name)
        self.tasks, self.arrivals, self.departures = InlineStream(), InlineStream(), InlineStream()

    @classmethod
    def check(cls) -> None:
        """See `Device.check`: every host is one."""

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """See `Device.allocate`."""
        import torch

        return self.room.allocate(
            prod(shape) * dtype.itemsize, lambda: torch.empty(tuple(shape), dtype=dtype, device="cpu")
        )

    def stage(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """See `Device.stage`."""
        import torch

        return torch.empty(count, dtype=dtype, device="cpu")

    def binding(self) -> AbstractContextManager[object]:
        """See `Device.binding`."""
        return nullcontext()

    def watch(self, work: Callable[[], object]) -> Taken | None:
        """See `Device.watch`."""
        from maniple.process.host_allocation import watch_host_run

        return watch_host_run(work)

    def close(self) -> None:
        """See `Device.close`: it has no threads."""


@final
class Cpu(HostDevice):
    """The host's own processors: they work on its memory as it is, so the runtime opens no device behind them."""

    kind = "cpu"


def _run(work: Callable[[], object]) -> None:
    """Run work as a task's body is run, on whatever thread this is."""
    from maniple.runtime.devices.processor import run_as_task

    with run_as_task():
        work()
