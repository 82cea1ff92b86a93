"""Ready rows: tasks, folds and shares of movements that this rank will run, and what waits for them.

=========  ==========================================  =========
state      what happens                                next
=========  ==========================================  =========
waiting    all that it waits for is over               ready
ready      its device was given its task               submitted
ready      its task has returned, its tiles are moved  done
ready      its task raised                             failed
submitted  its device is through with its task         done
submitted  its device failed                           failed
=========  ==========================================  =========

A row that waits is linked and released by the program's thread, and readied by whoever ends the last thing that it
waits for. What is done lets go of its body; what failed has ended the rank, so nobody goes on for it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Final, final

from maniple.process.error import RunError
from maniple.runtime.observe.timeline import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from maniple.runtime.devices.event import Event
    from maniple.runtime.devices.processor import Processor
    from maniple.runtime.execution.ready_queue import ReadyQueue
    from maniple.runtime.execution.recorder import Tell

__all__: list[str] = []


# Of integers, for those are hashed without a call of Python's: every row goes through the table several times.
class RowState(IntEnum):
    """Where a row is."""

    WAITING = 0
    READY = 1
    SUBMITTED = 2
    DONE = 3
    FAILED = 4


@final
class Transition(dict[RowState, RowState]):
    """Something that happens to a row, as its lines of the table: the state after it by the state before.

    Looking a state up is all that a row pays, and a state without a line is refused.

    Args:
        name: what messages call it.
        lines: its lines.
    """

    def __init__(self, name: str, lines: Mapping[RowState, RowState]) -> None:
        super().__init__(lines)
        self.name = name

    def __missing__(self, state: RowState) -> RowState:
        """Refuse what cannot happen.

        Raises:
            RunError: always.
        """
        legal = " or ".join(before.name.lower() for before in self)
        found = RowState(state).name.lower()
        raise RunError(
            f"a row is to be {self.name}: expected one that is {legal}, got one that is {found}; "
            "this is a fault of the runtime: please report it with the program that leads to it"
        )


READIED: Final = Transition("readied", {RowState.WAITING: RowState.READY})
SUBMITTED: Final = Transition("submitted", {RowState.READY: RowState.SUBMITTED})
ENDED: Final = Transition("ended", {RowState.READY: RowState.DONE, RowState.SUBMITTED: RowState.DONE})
BROKEN: Final = Transition("broken off", {RowState.READY: RowState.FAILED, RowState.SUBMITTED: RowState.FAILED})
# A name of a module costs less than an attribute of an enumeration.
DONE: Final = RowState.DONE


def _nothing() -> None:
    """Stand for the start of a row that has run, so that nothing holds its body any more."""


_NOBODY: list[ReadyRow] = []
"""Who waits for a row that is done; a row of its own for each would be made in vain."""


class ReadyRow:
    """A row that this rank will run: a task, a fold, or its share of a movement.

    A row that takes events starts when those before it that give events early are submitted, and when all others are
    done; any other row starts when all before it are done. What changes who waits for whom is called under the rank's
    lock.

    Args:
        start: called once nothing is left to wait for, by whichever thread finished last.
        takes: whether it is told to come after events, and not only started after them.
    """

    __slots__ = ("after", "events", "left", "start", "state", "takes")

    def __init__(self, start: Callable[[], None], *, takes: bool = False) -> None:
        self.start = start
        self.takes = takes
        self.state = RowState.WAITING
        self.left = 1  # the release itself, so that nothing starts half linked
        self.after: list[ReadyRow] = []
        self.events: tuple[Event, ...] = ()

    def lead(self, then: ReadyRow) -> None:
        """Have a row that depends on this one wait for it, unless it is done."""
        if self.state is not DONE:
            self.after.append(then)
            then.left += 1

    def precede(self, rows: Sequence[ReadyRow]) -> None:
        """Have rows wait until this one is done, unless it is, although they do not depend on it."""
        if self.state is not DONE:
            self.after += rows
            for row in rows:
                row.left += 1

    def begin(self) -> None:
        """Start it."""
        self.start()

    def end(self) -> list[ReadyRow]:
        """Be done, and let go of what only a row that is not needs; gives the rows that wait for nothing more."""
        self.state = ENDED[self.state]
        self.start = _nothing
        self.events = ()
        after, self.after = self.after, _NOBODY
        return count_down(after) if after else after

    def break_off(self) -> None:
        """Have failed."""
        self.state = BROKEN[self.state]


def count_down(rows: Iterable[ReadyRow]) -> list[ReadyRow]:
    """Note, under the rank's lock, that rows wait for one thing less; gives those that wait for nothing more."""
    ready = []
    for row in rows:
        row.left -= 1
        if not row.left:
            row.state = READIED[row.state]
            ready.append(row)
    return ready


class ReadyTask(ReadyRow):
    """A task or fold of this rank.

    Args:
        queue: is told when it is done.
        processor: where it runs.
        call: what it does.
        priority: order among ready rows.
        tell: notes when it is ready, starts and ends.
    """

    __slots__ = ("_call", "_priority", "_processor", "_queue", "_tell")

    def __init__(
        self, queue: ReadyQueue, processor: Processor, call: Callable[[], object], priority: int, tell: Tell
    ) -> None:
        super().__init__(_nothing)
        self._queue, self._processor, self._call = queue, processor, call
        self._priority, self._tell = priority, tell

    def begin(self) -> None:
        """Hand it to its processor."""
        self._tell(Kind.READY)
        self._processor.enqueue(self, self._priority)

    def __call__(self) -> None:
        """Run it; what it raises ends the rank."""
        self._tell(Kind.STARTED)
        try:
            self._processor.submit(self._call)
        except BaseException:
            self.break_off()
            raise
        self._tell(Kind.ENDED)
        self._call = _nothing
        self._queue.complete(self)


@final
class DeviceTask(ReadyTask):
    """A task or fold on a device: whatever takes events comes behind it as soon as it is submitted.

    Args:
        queue: is told when it is submitted, and when it is done.
        processor: where it runs.
        call: what it does.
        priority: order among ready rows.
        tell: notes when it is ready, and then when it started and ended on the device.
        measure: told for how many nanoseconds it ran there.
    """

    __slots__ = ("_behind", "_event", "_measure")

    def __init__(
        self,
        queue: ReadyQueue,
        processor: Processor,
        call: Callable[[], object],
        priority: int,
        tell: Tell,
        measure: Callable[[int], object] | None,
    ) -> None:
        super().__init__(queue, processor, call, priority, tell)
        self.takes = True
        self._behind: list[ReadyRow] = []  # what waits until it is submitted
        self._event: Event | None = None
        self._measure = measure

    def lead(self, then: ReadyRow) -> None:
        """See `ReadyRow.lead`; one that takes events waits until this one is submitted, and then for its event."""
        if not then.takes:
            super().lead(then)
        elif self._event is None:
            self._behind.append(then)
            then.left += 1
        elif self.state is not DONE:
            then.events += (self._event,)

    def submitted(self, event: Event) -> list[ReadyRow]:
        """Take note of the event that will end it; gives the rows that wait for nothing more."""
        self.state = SUBMITTED[self.state]
        self._event = event
        behind, self._behind = self._behind, []
        for later in behind:
            later.events += (event,)
        return count_down(behind)

    def __call__(self) -> None:
        """Submit it; what it raises ends the rank."""
        device = self._processor.device
        timed = device is not None and device.timed
        try:
            if device is not None and self._measure is not None:
                device.timed = True
            event = self._processor.submit(self._call, self.events)
        except BaseException:
            self.break_off()
            raise
        finally:
            if device is not None:
                device.timed = timed
        self._queue.submit(self, event)
        event.then(self._over)

    def _over(self, error: BaseException | None) -> None:
        event = self._event
        if error is not None or event is None:
            self.break_off()
            self._queue.fail(error or RuntimeError("a task ended before it was submitted"))
            return
        self._tell(Kind.STARTED, event.begun_ns)
        self._tell(Kind.ENDED, event.ended_ns)
        if self._measure is not None:
            self._measure(event.ended_ns - event.begun_ns)
        self._call = _nothing
        self._queue.complete(self)
