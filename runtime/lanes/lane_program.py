"""Lane programs: the steps of one processor's lane, bound; run by the interpreter, or by compiled code where they are.

The first run of a lane goes through the interpreter and finds out what is called where. From then on steps in a row
whose calls are all compiled (leaves, and copies into memory that ranks share) are taken by one call of `take_steps`,
which keeps no interpreter lock. The others, such as bodies in Python, are taken one by one in between:

    steps           meet 1   leaf   push   leaf   torch body   leaf   end
    second run      entry    [---- stretch ----]  entry        [stretch--]

A run that is given values of other types than the second was goes through the interpreter.

A lane can be left wherever it waits and taken on later, by this thread or another: `advance` goes as far as it can.
"""

from __future__ import annotations

from array import array
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Protocol

from maniple.runtime.lanes.compiled_lane import CompiledLane, compilable, elsewhere
from maniple.runtime.lanes.lane_step import StepFailed
from maniple.runtime.program.body import BoundTask

if TYPE_CHECKING:
    from collections.abc import Callable

    from maniple.runtime.lanes.compiled_lane import Stretch
    from maniple.runtime.lanes.lane_step import LaneStep, Pause
    from maniple.runtime.lanes.progress import Progress
    from maniple.runtime.program.launch_execution import Calls
    from maniple.runtime.storage.copy_kernels import Wire

__all__: list[str] = []


class Tasks(Protocol):
    """What a lane asks of its tasks, and tells of them."""

    def is_troubled(self, processor: int) -> bool:
        """Say whether tasks may have to be left out."""
        ...

    def has_reached(self, processor: int, row: int) -> bool:
        """Say whether the task of a row must be."""
        ...

    def note(self, processor: int, row: int, error: BaseException) -> bool:
        """Hear that the body of a row raised, and say whether the lane goes on."""
        ...


class LaneProgram:
    """The steps of one processor's lane, and how far its run has come.

    Args:
        processor: whose.
        entries: the steps.
        progress: counters, and waits for them.
        wire: counts what the lane writes to other ranks.
        tasks: hears of bodies that raise, and knows which are left out for that.
    """

    def __init__(self, processor: int, entries: list[LaneStep], progress: Progress, wire: Wire, tasks: Tasks) -> None:
        self.processor = processor
        self._tasks = tasks
        self.entries = entries
        self.progress = progress
        self.wire = wire
        self._publish = progress.publisher(processor)
        self._compiled: CompiledLane | None = None
        self._runs = 0
        bound = (entry.call for entry in entries if isinstance(entry.call, BoundTask))
        self._frames = next((task.frames for task in bound), None)  # a trace's, the same for all its tasks
        self._turn = 0 if self._frames is None else self._frames.turn
        self._calls: Calls | None = None
        self._base: dict[int, int] = {}
        self._times = array("q"), array("q")
        self._at = 0
        self._ready: CompiledLane | None = None  # of the run at hand
        self._since = 0
        self.lasted_ns = 0
        """How long the latest run took."""
        self.met: dict[int, int] = {}
        """By other rank the table by which pushes to it are bound."""

    @property
    def compiled(self) -> bool:
        """Whether its next run is one stretch of compiled steps, unless the values have other types than before."""
        found = self._compiled
        return found is not None and [stretch[:2] for stretch in found.stretches] == [(0, len(self.entries))]

    def push(self, index: int, call: Callable[[], object]) -> None:
        """Bind a push anew, to where the other rank's instances are now."""
        self.entries[index] = self.entries[index]._replace(call=call)
        self._compiled, self._runs = None, 0

    def begin(self, number: int, base: dict[int, int], begun: array[int], ended: array[int]) -> None:
        """Get ready to take all steps once.

        Args:
            number: of the run.
            base: the value of every counter when the run began.
            begun: by row, where to note when it began; one more for those of no row.
            ended: by row, where to note when it ended.
        """
        self._base, self._times, self._at, self._ready = base, (begun, ended), 0, None
        self._since = perf_counter_ns()
        frames = self._frames
        if frames is None:
            return
        calls = self._calls = frames.now[self.processor] = frames.runs[self._turn]
        self._turn = (self._turn + 1) % len(frames.runs)
        if self._runs == 1 and frames.table is not None and any(compilable(entry) for entry in self.entries):
            self._compiled = CompiledLane(
                self.processor, self.entries, self.progress, self.wire, frames.table, len(begun) - 1
            )
        self._runs += 1
        if self._compiled is not None and self._compiled.begin(number, calls, base):
            self._ready = self._compiled

    def advance(self, *, without_waiting: bool = False) -> Pause | None:
        """Take steps, the compiled ones by compiled code.

        Args:
            without_waiting: whether this thread may take compiled steps only, and not wait.

        Returns:
            None when all are taken; else what says whether it can go on.

        Raises:
            StepFailed: a task's body, or another call of a row, raised.
        """
        end = len(self.entries)
        while self._at < end:
            if self._ready is not None and self._tasks.is_troubled(self.processor):
                self._ready = None  # compiled code leaves nothing out
            ready = self._ready
            stretch = None if ready is None else ready.stretch(self._at)
            if ready is not None and stretch is not None and stretch.start <= self._at:
                self._at, pause = self._take(ready, stretch, without_waiting=without_waiting)
            elif without_waiting:
                return elsewhere
            else:
                pause = self._interpret(end if stretch is None else stretch.start)
            if self._compiled is not ready:  # a step before has bound the lane anew
                self._ready = None
            if pause is not None:
                return pause
        if self._calls is not None:
            self._calls.end(self.processor)
        self._publish(self._base[self.processor] + end)
        self.lasted_ns = perf_counter_ns() - self._since
        return None

    def _take(self, ready: CompiledLane, stretch: Stretch, *, without_waiting: bool) -> tuple[int, Pause | None]:
        """Take compiled steps, up to a body that raised."""
        try:
            return ready.take(stretch, self._at, self._times, without_waiting=without_waiting)
        except StepFailed as failed:
            error = failed.__cause__ or failed
            if failed.index < 0 or not self._tasks.note(self.processor, failed.row, error):
                raise
            steps = self.entries[failed.index].steps
            if steps:
                self._publish(self._base[self.processor] + steps)
            return failed.index + 1, None

    def _interpret(self, end: int) -> Pause | None:
        """Take steps up to one of them without compiled code."""
        now, publish, base = perf_counter_ns, self._publish, self._base
        (begun, ended), taken, entries = self._times, base[self.processor], self.entries
        tasks, mine = self._tasks, self.processor
        for index in range(self._at, end):
            first, row, call, waits, lands, steps = entries[index]
            if waits:
                waiting = now()
                for wait, where, counter, value in waits:
                    if not wait(where, base[counter] + value):
                        self._at = index
                        return partial(wait, where, base[counter] + value)
                for before, landed in lands:
                    begun[before], ended[landed] = waiting, now()
            if not (row >= 0 and tasks.is_troubled(mine) and tasks.has_reached(mine, row)):
                begun[first] = now()
                if call is not None:
                    try:
                        call()
                    except BaseException as error:
                        if not tasks.note(mine, row, error):
                            raise StepFailed(row) from error
                ended[row] = now()
            if steps:
                publish(taken + steps)
        self._at = end
        return None
