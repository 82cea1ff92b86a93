"""Ready rows: tasks, folds and shares of movements that this rank will run, and what waits for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, final

from maniple.runtime.observe.timeline import Kind

if TYPE_CHECKING:
    from maniple.runtime.devices.event import Event
    from maniple.runtime.devices.processor import Processor
    from maniple.runtime.execution.ready_queue import ReadyQueue
    from maniple.runtime.execution.recorder import Tell

__all__: list[str] = []


def _done() -> None:
    """Stand in for the start of a row that has run, so that nothing holds its body any more."""


class ReadyRow:
    """A row that this rank will run: a task, a fold, or its share of a movement.

    A row that takes events starts when those before it that give events early are submitted, and when all others are
    done; any other row starts when all before it are done.

    Args:
        start: called once nothing is left to wait for, by whichever thread finished last.
        takes: whether it is told to come after events, and not only started after them.
    """

    __slots__ = ("after", "done", "events", "left", "start", "takes")

    def __init__(self, start: Callable[[], None], *, takes: bool = False) -> None:
        self.start = start
        self.takes = takes
        self.left = 1  # the issue itself, so that nothing starts half linked
        self.after: list[ReadyRow] = []
        self.events: list[Event] = []
        self.done = False

    def begin(self) -> None:
        """Start it."""
        self.start()

    def end(self) -> None:
        """Let go of what only a row that is not done yet needs."""
        self.done = True
        self.start = _done
        self.events = []


class ReadyTask(ReadyRow):
    """A task or fold of this rank.

    Args:
        issuer: is told when it is done.
        processor: where it runs.
        call: what it does.
        priority: order among ready rows.
        tell: notes when it is ready, starts and ends.
    """

    __slots__ = ("_call", "_issuer", "_priority", "_processor", "_tell")

    def __init__(
        self, issuer: ReadyQueue, processor: Processor, call: Callable[[], object], priority: int, tell: Tell
    ) -> None:
        super().__init__(_done)
        self._issuer, self._processor, self._call = issuer, processor, call
        self._priority, self._tell = priority, tell

    def begin(self) -> None:
        """Hand it to its processor."""
        self._tell(Kind.READY)
        self._processor.enqueue(self, self._priority)

    def __call__(self) -> None:
        """Run it."""
        self._tell(Kind.STARTED)
        self._processor.submit(self._call)
        self._tell(Kind.ENDED)
        self._call = _done
        self._issuer.complete(self)


@final
class DeviceTask(ReadyTask):
    """A task or fold on a device: whatever takes events comes behind it as soon as it is submitted.

    Args:
        issuer: is told when it is submitted, and when it is done.
        processor: where it runs.
        call: what it does.
        priority: order among ready rows.
        tell: notes when it is ready, and then when it started and ended on the device.
        measure: told for how many nanoseconds it ran there.
    """

    __slots__ = ("_measure", "behind", "event")

    def __init__(
        self,
        issuer: ReadyQueue,
        processor: Processor,
        call: Callable[[], object],
        priority: int,
        tell: Tell,
        measure: Callable[[int], object] | None,
    ) -> None:
        super().__init__(issuer, processor, call, priority, tell)
        self.takes = True
        self.behind: list[ReadyRow] = []  # what waits until it is submitted
        self.event: Event | None = None
        self._measure = measure

    def __call__(self) -> None:
        """Submit it."""
        event = self._processor.submit(self._call, self.events)
        self._issuer.submitted(self, event)
        event.then(self._ended)

    def _ended(self, error: BaseException | None) -> None:
        event = self.event
        if error is not None or event is None:
            self._issuer.runtime.fail(error or RuntimeError("a task ended before it was submitted"))
            return
        self._tell(Kind.STARTED, event.begun_ns)
        self._tell(Kind.ENDED, event.ended_ns)
        if self._measure is not None:
            self._measure(event.ended_ns - event.begun_ns)
        self._call = _done
        self._issuer.complete(self)
