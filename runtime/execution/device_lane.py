"""Device lanes: the steps of one GPU processor in a replay, submitted in order and ended by events.

The thread of the lane runs ahead of the device: it submits a step behind the events of what the step waits for, and
goes on. What it waits for itself is only that such an event exists, that a CPU's counter has been raised, or that a
movement has ended. "Step 3 of g1 is done" is then said twice: by an event, to other device lanes of the rank and to the
copy engine, and by g1's counter, raised when that event is done, to everybody else.

    lane of p0    lane of g1 (submits)      lane of g2 (submits)       stream of g1   stream of g2
    0 load        waits for p0's counter    .                          .              .
    1 .           0 a[0]: event e0          .                          a[0] runs      .
    2 .           1 b[0]: event e1          0 c[0] behind e0           b[0] runs      c[0] runs once e0 is done
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, final

from maniple.runtime.devices.event import DONE
from maniple.runtime.program.body import BoundTask
from maniple.runtime.schedule.lane import StepKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from maniple.runtime.devices.event import Event
    from maniple.runtime.devices.processor import Processor
    from maniple.runtime.execution.run import Run
    from maniple.runtime.program.launch_execution import Calls, Frames
    from maniple.runtime.schedule.lane import Step, Wait

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


class _Bound(NamedTuple):
    """A step that is bound.

    Args:
        step: the step.
        call: the body, fold, or start of a movement.
        waits: what this thread waits for: (how, where, counter, value).
        behind: the device lanes that it waits for: (counter, value).
    """

    step: Step
    call: Callable[[], object]
    waits: tuple[tuple[Callable[[int, int], object], int, int, int], ...]
    behind: tuple[Wait, ...]


@final
class DeviceLane:
    """One GPU processor's share of a replay.

    Args:
        processor: the processor.
        milestones: of all device lanes of the rank, by processor.
        start: hands a row of a run to the copy engine, behind events.
    """

    def __init__(
        self,
        processor: Processor,
        milestones: Mapping[int, Milestones],
        start: Callable[[Run, int, tuple[Event, ...]], None],
    ) -> None:
        self._processor = processor
        self._milestones = milestones
        self._start = start
        self._steps: tuple[_Bound, ...] = ()
        # A step may take for granted what the lane waited for before, in the run before too.
        self._last: Event = DONE
        self._owed: list[Event] = []  # waited for by movements alone so far
        self._frames: Frames | None = None
        self._turn = 0

    def bind(
        self,
        steps: tuple[Step, ...],
        call: Callable[[int, Step], Callable[[], object]],
        wait: Callable[[int, int], tuple[Callable[[int, int], object], int, int, int]],
    ) -> None:
        """Bind the steps of the lane.

        Args:
            steps: its steps.
            call: binds a task or fold.
            wait: gives what waits for a counter's value on this thread.
        """
        found = []
        for step in steps:
            behind = tuple(part for part in step.waits if part[0] in self._milestones)
            waits = tuple(wait(*part) for part in step.waits if part[0] not in self._milestones)
            bound = _nothing if step.kind == StepKind.START else call(self._processor.id, step)
            found.append(_Bound(step, bound, waits, behind))
        self._steps = tuple(found)
        self._frames = next((bound.call.frames for bound in found if isinstance(bound.call, BoundTask)), None)
        self._turn = 0 if self._frames is None else self._frames.turn

    def take(self, run: Run, publish: Callable[[int], object], ended: Callable[[], object]) -> None:
        """Submit all steps for a run.

        Args:
            run: the run.
            publish: raises the processor's counter.
            ended: called once all of it is done.
        """
        base, mine = run.base, self._processor.id
        before, last = base[mine], self._last
        own = self._milestones[mine]
        calls: Calls | None = None
        if self._frames is not None:
            calls = self._frames.runs[self._turn]
            self._turn = (self._turn + 1) % len(self._frames.runs)
            # On the device's stream, for bodies may begin when this thread is at the next run already.
            self._processor.submit(partial(self._frames.now.__setitem__, mine, calls))
        owed = self._owed
        for place, (step, call, waits, behind) in enumerate(self._steps):
            for wait, where, counter, value in waits:
                wait(where, base[counter] + value)
            owed += [self._milestones[counter].of(base[counter] + value) for counter, value in behind]
            if step.kind == StepKind.START:
                self._start(run, step.row, (*owed, last))
            else:
                last = self._processor.submit(call, owed)
                owed.clear()
                last.then(partial(_note, run, step.row, last))
            if step.told:
                own.reach(before + place + 1, last)
                last.then(partial(_raise, publish, before + place + 1))
        self._last = last
        own.reach(before + len(self._steps), last)
        last.then(partial(_raise, publish, before + len(self._steps)))

        def over(error: BaseException | None) -> None:
            if error is None:
                if calls is not None:
                    calls.end(mine)
                ended()

        last.then(over)


def _note(run: Run, row: int, event: Event, error: BaseException | None) -> None:
    """Note when a row ran, or fail the run."""
    if error is not None:
        run.replay.fail(row, error)
        return
    begun, ended = run.replay.times[run.slot]
    begun[row], ended[row] = event.begun_ns, event.ended_ns


def _raise(publish: Callable[[int], object], taken: int, error: BaseException | None) -> None:
    """Raise a counter, unless what it counts was not done."""
    if error is None:
        publish(taken)


def _nothing() -> None:
    """Stand for what a step that starts a movement does on the device."""
