"""Device lanes: the segments of one GPU processor in a replay, submitted in order and ended by events.

The thread of the lane runs ahead of the device: it submits a segment behind the events of what its first step waits
for, and goes on. What it waits for itself is only that such an event exists, that a CPU's counter has been raised, or
that a movement has ended. "Step 3 of g1 is done" is then said twice: by an event, to other device lanes of the rank and
to the copy engine, and by g1's counter, raised when that event is done, to everybody else.

    lane of p0    lane of g1 (submits)        lane of g2 (submits)       stream of g1   stream of g2
    0 load        waits for p0's counter      .                          .              .
    1 .           0 a[0] a[1]: event e0       .                          a[0] runs      .
    2 .           1 b[0]: event e1            0 c[0] behind e0           a[1] runs      c[0] runs once e0 is done

While something records, every step is a segment of its own, whose event says when it ran.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.runtime.devices.event import DONE
from maniple.runtime.lanes.segment import Segment, bound_steps, cut_lane
from maniple.runtime.program.body import BoundTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from maniple.runtime.devices.device import Device
    from maniple.runtime.devices.event import Event
    from maniple.runtime.devices.processor import Processor
    from maniple.runtime.execution.run import Run
    from maniple.runtime.lanes.segment import BoundStep
    from maniple.runtime.program.launch_execution import Calls, Frames
    from maniple.runtime.schedule.lane import Step
    from maniple.runtime.schedule.schedule import Schedule

__all__: list[str] = []


@final
class Milestones:
    """The events of a device lane's steps, by how many steps the lane has taken since the program began.

    Args:
        check: raises when the run was stopped or has failed.
        patience_s: how often to look for a failure while no event comes.
    """

    def __init__(self, check: Callable[[], None], patience_s: float) -> None:
        self._check = check
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._taken = 0
        self._done = 0
        self._events: deque[tuple[int, Event]] = deque()

    def reach(self, taken: int, event: Event) -> None:
        """Say that so many steps were submitted, the last of which ends with an event."""
        with self._changed:
            while self._events and self._events[0][1].done:
                self._done = self._events.popleft()[0]
            self._events.append((taken, event))
            self._taken = taken
            self._changed.notify_all()

    def of(self, taken: int) -> Event:
        """Wait until so many steps were submitted, and give the event that says that they are done.

        Raises:
            RunError: the run was stopped or has failed.
        """
        with self._changed:
            while self._taken < taken:
                self._check()
                self._changed.wait(self._patience_s)
            if taken <= self._done:
                return DONE
            place = bisect_left(self._events, taken, key=lambda milestone: milestone[0])
            return self._events[place][1] if place < len(self._events) else DONE


@final
class DeviceLane:
    """One GPU processor's share of a replay.

    Args:
        processor: the processor.
        milestones: of all device lanes of the rank, by processor.
        start: hands a row of a run to the copy engine, behind events.
        schedule: what its steps are of.
    """

    def __init__(
        self,
        processor: Processor,
        milestones: Mapping[int, Milestones],
        start: Callable[[Run, int, tuple[Event, ...]], None],
        schedule: Schedule,
    ) -> None:
        if processor.device is None:
            msg = f"processor {processor.id} is a CPU: it has no device lane"
            raise TypeError(msg)
        self._processor = processor
        self._device: Device = processor.device
        self._milestones = milestones
        self._start = start
        self._schedule = schedule
        self._length = 0
        self._parts: tuple[Segment | BoundStep, ...] = ()
        self._singly: tuple[Segment | BoundStep, ...] = ()  # the same with a segment for every step
        # A step may take for granted what the lane waited for before, in the run before too.
        self._last: Event = DONE
        self._owed: list[Event] = []  # waited for by movements alone so far
        self._frames: Frames | None = None
        self._turn = 0
        self._alone = False
        self._ends: dict[int, Event] = {}  # of the runs, by slot

    def bind(
        self,
        steps: tuple[Step, ...],
        call: Callable[[int, Step], Callable[[], object]],
        wait: Callable[[int, int], tuple[Callable[[int, int], object], int, int, int]],
    ) -> None:
        """Bind the steps of the lane; what was captured is captured anew.

        Args:
            steps: its steps.
            call: binds a task or fold.
            wait: gives what waits for a counter's value on this thread.
        """
        found = bound_steps(steps, self._milestones, partial(call, self._processor.id), wait, self._schedule)
        capture = self._device.capture
        self._length = len(steps)
        self._parts = cut_lane(found, capture)
        self._singly = tuple(step if step.call is None else Segment((step,), capture) for step in found)
        self._frames = next((step.call.frames for step in found if isinstance(step.call, BoundTask)), None)
        self._turn = 0 if self._frames is None else self._frames.turn
        self._alone = len(self._parts) == 1 and not found[0].waits and not found[0].behind

    @property
    def settled(self) -> bool:
        """Whether all of it is one submission that waits for nobody, and issues only what was captured before.

        Then whoever waits for a run may submit it: no body runs, on which what its thread is inside of would tell.
        """
        part = self._parts[0] if self._alone else None
        return isinstance(part, Segment) and part.bare and not self._device.timed

    def attend(self, run: Run) -> None:
        """Wait on this thread until what was submitted for a run has ended; it may return sooner."""
        if (end := self._ends.get(run.slot)) is not None:
            self._device.tasks.attend(end)

    def pieces(self) -> Iterator[tuple[tuple[int, ...], str, bool]]:
        """The rows of each piece, why it is not captured ("" if it may be), and whether it is."""
        for part in self._parts:
            if isinstance(part, Segment):
                for piece in part.pieces:
                    yield tuple(step.row for step in piece.steps), piece.eager, piece.graph is not None

    def take(self, run: Run, publish: Callable[[int], object], ended: Callable[[], object], *, attended: bool) -> None:
        """Submit all segments for a run.

        Args:
            run: the run.
            publish: raises the processor's counter.
            ended: called once all of it is done.
            attended: whether this thread waits for the run next; see `attend`.
        """
        base, mine = run.base, self._processor.id
        before, last = base[mine], self._last
        own = self._milestones[mine]
        parts = self._singly if self._device.timed else self._parts
        calls, enter = self._enter()
        if enter is not None and not isinstance(parts[0], Segment):
            self._processor.submit(enter)
            enter = None
        owed = self._owed
        for part in parts:
            first = part.first if isinstance(part, Segment) else part
            for wait, where, counter, value in first.waits:
                wait(where, base[counter] + value)
            owed += [self._milestones[counter].of(base[counter] + value) for counter, value in first.behind]
            if isinstance(part, Segment):
                part.attended = attended
                last = self._processor.submit(part if enter is None else _Entering(enter, part), owed)
                enter = None
                owed.clear()
                last.then(partial(_note, run, part, last))
            else:
                self._start(run, part.row, (*owed, last))
            if part.told:
                own.reach(before + part.told, last)
                last.then(partial(_raise, publish, before + part.told))
        self._last = self._ends[run.slot] = last

        def over(error: BaseException | None) -> None:
            if error is None:
                if calls is not None:
                    calls.end(mine)
                ended()

        last.then(over)

    def _enter(self) -> tuple[Calls | None, Callable[[], object] | None]:
        """The next calls, if bodies take values, and what has bodies take those of them from then on.

        That is done on the device's stream, for bodies may begin when this thread is at the next run already.
        """
        if self._frames is None:
            return None, None
        calls = self._frames.runs[self._turn]
        self._turn = (self._turn + 1) % len(self._frames.runs)
        return calls, partial(self._frames.now.__setitem__, self._processor.id, calls)


@final
class _Entering:
    """The first segment of a run whose bodies take values.

    Args:
        enter: has them take those of the run.
        segment: what follows.
    """

    __slots__ = ("_enter", "_segment", "attended", "bare")

    def __init__(self, enter: Callable[[], object], segment: Segment) -> None:
        self._enter, self._segment = enter, segment
        self.bare, self.attended = segment.bare, segment.attended

    def __call__(self) -> None:
        """Do both."""
        self._enter()
        self._segment()


def _note(run: Run, segment: Segment, event: Event, error: BaseException | None) -> None:
    """Note when the rows of a segment ran, or fail the run."""
    rows = segment.begun(error)
    for times, moment in zip(run.replay.times[run.slot], (event.begun_ns, event.ended_ns), strict=True):
        np.frombuffer(times, np.int64)[rows] = moment
    if error is not None:
        run.replay.fail(segment.row_of(error), error)


def _raise(publish: Callable[[int], object], taken: int, error: BaseException | None) -> None:
    """Raise a counter, unless what it counts was not done."""
    if error is None:
        publish(taken)
