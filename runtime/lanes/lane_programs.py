"""Lane programs of a replay: those of each moment, where values live over several runs, bound when it comes.

A task is bound once for each place that what it uses takes turns with, whatever the moments in which it runs. Lanes
have tasks of several numbers of places, and all of a lane lie where they lay only after their least common multiple:

    places       runs after which a lane comes again    bound of a task
    4 and 3      12                                     4 times, 3 times, and of one that uses both 12 times
    16 and 15    240                                    16 times, 15 times, and of one that uses both as it comes
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, final

from maniple.runtime.lanes.cycle import Moment
from maniple.runtime.lanes.lane_program import LaneProgram
from maniple.runtime.lanes.lane_step import LaneStep, Meeting
from maniple.runtime.schedule.lane import StepKind

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from maniple.runtime.lanes.binding import Binder
    from maniple.runtime.lanes.cycle import Cycle
    from maniple.runtime.lanes.lane_program import Tasks
    from maniple.runtime.lanes.progress import Progress
    from maniple.runtime.schedule.lane import Lanes, Step
    from maniple.runtime.storage.push import Incoming, Movement, Outgoing

    Movements = tuple[dict[int, Movement], list[Outgoing], list[Incoming]]

__all__: list[str] = []

KEPT = 128
"""So many moments of lanes stay bound, and of a task so many runs at most."""


@final
class Calls(NamedTuple):
    """What lanes call of a replay.

    Args:
        meet: (processor, rank): waits until the other rank has begun the run, and binds the pushes to it.
        start: (processor, row): hands a movement to the copy engine.
        skip: (processor, row): has one count as made.
        await_move: (row, value): waits until a movement was made so often.
    """

    meet: Callable[[int, int], int]
    start: Callable[[int, int], None]
    skip: Callable[[int, int], None]
    await_move: Callable[[int, int], bool]


@final
class LanePrograms:
    """The lanes of a rank, bound.

    Args:
        lanes: the lanes.
        hosts: the processors whose lanes are bound here; devices have lanes of another kind.
        binder: binds their steps.
        progress: counters.
        tasks: hears of bodies that raise.
        calls: of the replay.
        cycle: which run is next, where values live over several.
    """

    def __init__(
        self,
        lanes: Lanes,
        hosts: Collection[int],
        binder: Binder,
        progress: Progress,
        tasks: Tasks,
        calls: Calls,
        cycle: Cycle | None,
    ) -> None:
        self._lanes, self._binder, self._progress, self._tasks = lanes, binder, progress, tasks
        self._hosts, self._calls, self._cycle = sorted(hosts), calls, cycle
        self._made: dict[tuple[int, Moment], LaneProgram] = {}
        self._moved: dict[tuple[int, Moment], Movements] = {}
        self._bodies: dict[tuple[int, int], Callable[[], object]] = {}  # by row and run, within the period of the row
        self._row_periods: dict[int, int] = {}
        rows = {processor: {step.row for step in steps if step.row >= 0} for processor, steps in lanes.steps.items()}
        self._own = frozenset[int]().union(*rows.values())
        opened: set[int] = set()
        self._first: dict[int, list[int]] = {}
        for processor, steps in sorted(lanes.steps.items()):
            first = self._first[processor] = []
            for step in steps:
                first.append(step.row if step.row not in opened else -1)
                opened.add(step.row)
        self._periods = {} if cycle is None else {processor: cycle.period(found) for processor, found in rows.items()}
        self._period = 1 if cycle is None else cycle.period(lanes.engine)

    def renew(self) -> None:
        """Bind all anew from now on: storage has moved."""
        self._made.clear()
        self._bodies.clear()
        self._moved.clear()

    def of(self, moment: Moment) -> Mapping[int, LaneProgram]:
        """Give the program of each lane in a run."""
        idle = None if self._cycle is None else self._cycle.idle(moment)
        found = {}
        for processor in self._hosts:
            key = processor, moment._replace(turn=moment.turn % self._periods.get(processor, 1))
            if key not in self._made:
                self._made[key] = self._program(*key, frozenset() if idle is None else idle)
            found[processor] = self._made[key] = self._made.pop(key)  # the latest comes last
        for key in list(self._made)[: max(0, len(self._made) - KEPT * len(found))]:
            del self._made[key]
        return found

    def movements(self, slot: int, moment: Moment, finished: Callable[[int, int], None]) -> Movements:
        """Give what the copy engine moves in a run.

        Args:
            slot: which of the replay's sets of times it uses.
            moment: of the run.
            finished: told (slot, row) of what was moved.
        """
        key = slot, moment._replace(turn=moment.turn % self._period)
        if key not in self._moved:
            idle = frozenset[int]() if self._cycle is None else self._cycle.idle(moment)
            self._moved[key] = self._binder.movements(partial(finished, slot), moment.turn, idle)
        found = self._moved[key] = self._moved.pop(key)
        for old in list(self._moved)[: max(0, len(self._moved) - KEPT)]:
            del self._moved[old]
        return found

    def wait(self, counter: int, value: int) -> tuple[Callable[[int, int], bool], int, int, int]:
        """Give how to wait for a counter."""
        if counter < 0:
            return self._calls.await_move, -1 - counter, counter, value
        return self._progress.wait, self._progress.processor(counter), counter, value

    def _program(self, processor: int, moment: Moment, idle: frozenset[int]) -> LaneProgram:
        program = []
        for index, (step, first) in enumerate(zip(self._lanes.steps[processor], self._first[processor], strict=True)):
            waits = tuple(self.wait(*wait) for wait in step.waits)
            lands = tuple((row if row not in self._own else -1, row) for row in step.lands)
            call = self._call(processor, step, moment.turn, idle=step.row in idle)
            program.append(LaneStep(first, step.row, call, waits, lands, index + 1 if step.told else 0))
        return LaneProgram(processor, program, self._progress, self._binder.wires[processor], self._tasks)

    def _call(self, processor: int, step: Step, turn: int, *, idle: bool) -> Callable[[], object] | None:
        if step.kind == StepKind.MEET:
            return Meeting(partial(self._calls.meet, processor, step.item), *self._progress.board(step.item))
        if step.kind == StepKind.START:
            return partial(self._calls.skip if idle else self._calls.start, processor, step.row)
        # Pushes are bound when the other rank is met.
        if idle or step.kind in {StepKind.END, StepKind.MOVED, StepKind.PUSH}:
            return None
        if step.kind != StepKind.RUN or self._cycle is None:
            return self._binder.call(processor, step, turn)
        if step.row not in self._row_periods:
            self._row_periods[step.row] = self._cycle.period((step.row,))
        period = self._row_periods[step.row]
        if period > KEPT:
            return self._binder.call(processor, step, turn)
        key = step.row, turn % period
        if key not in self._bodies:
            self._bodies[key] = self._binder.call(processor, step, turn)
        return self._bodies[key]
