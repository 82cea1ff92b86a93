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
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple, cast

from maniple.regions.error import RunError
from maniple.runtime.body import BoundTask
from maniple.runtime.kernels import Push
from maniple.runtime.progress import LOOKS, TABLES
from maniple.runtime.shared_memory import LINE
from maniple.runtime.variant import CompiledBody

if TYPE_CHECKING:
    from maniple.runtime.call import Calls
    from maniple.runtime.kernels import Wire
    from maniple.runtime.progress import Progress
    from maniple.runtime.value_table import ValueTable

__all__: list[str] = []

Pause = Callable[[], bool]
"""Says whether what a lane waits for has come."""

RUN = -1
"""Stands for the number of the run among the bases, which are those of processors."""


class Entry(NamedTuple):
    """One step.

    Args:
        first: where to note its beginning: its row, or -1 where an earlier step of the row has.
        row: where to note its end; -1 where it belongs to no row.
        call: what to do; None for nothing.
        waits: (how, where, counter, value) of what to wait for; how waits for a value, and says whether it has come;
            where is a counter's address, or the copy engine's row.
        lands: (first, row) of the rows of which tiles have arrived after the waits.
        steps: the steps taken with it, where somebody waits for it; else 0.
    """

    first: int
    row: int
    call: Callable[[], object] | None
    waits: tuple[tuple[Callable[[int, int], bool], int, int, int], ...]
    lands: tuple[tuple[int, int], ...]
    steps: int


class Stretch(NamedTuple):
    """Compiled steps in a row.

    Args:
        start: the first, as an index of the lane.
        end: past the last.
        table: them, as `take_steps` reads them; it stays where it is.
        at: the address of each one, and that past the last one.
    """

    start: int
    end: int
    table: array[int]
    at: list[int]


class Meeting:
    """A step that waits until another rank has begun the run.

    Args:
        meet: does so, and binds the pushes to that rank anew if its table is another; gives the table.
        begun: address of that rank's counter of runs.
        tables: address of the place of its first table.
    """

    __slots__ = ("_meet", "begun", "table", "tables")

    def __init__(self, meet: Callable[[], int], begun: int, tables: int) -> None:
        self._meet, self.begun, self.tables = meet, begun, tables
        self.table = 0

    def __call__(self) -> None:
        """Meet."""
        self.table = self._meet()

    def block(self) -> list[int]:
        """The words that `meet` of the compiled lane reads."""
        return [self.begun, self.tables, TABLES, LINE, self.table]


class StepFailed(Exception):  # noqa: N818  (it says what happened; nobody outside of replays sees it)
    """Says that the call of a step raised what this was raised from.

    Args:
        row: the step's row.
    """

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


class LaneProgram:
    """The steps of one processor's lane, and how far its run has come.

    Args:
        processor: whose.
        entries: the steps.
        progress: counters, and waits for them.
        wire: counts what the lane writes to other ranks.
    """

    def __init__(self, processor: int, entries: list[Entry], progress: Progress, wire: Wire) -> None:
        self.processor = processor
        self.entries = entries
        self.progress = progress
        self.wire = wire
        self._publish = progress.publisher(processor)
        self._compiled: CompiledLane | None = None
        self._runs = 0
        tasks = (entry.call for entry in entries if isinstance(entry.call, BoundTask))
        self._frames = next((task.frames for task in tasks), None)  # a trace's, the same for all its tasks
        self._turn = 0 if self._frames is None else self._frames.turn
        self._calls: Calls | None = None
        self._base: dict[int, int] = {}
        self._times = array("q"), array("q")
        self._at = 0
        self._ready: CompiledLane | None = None  # of the run at hand
        self._since = 0
        self.lasted_ns = 0
        """How long the latest run took."""

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
        if self._runs == 1 and frames.table is not None and any(_compilable(entry) for entry in self.entries):
            self._compiled = CompiledLane(self, frames.table, len(begun) - 1)
        self._runs += 1
        if self._compiled is not None and self._compiled.begin(number, calls, base):
            self._ready = self._compiled

    def advance(self, *, lent: bool = False) -> Pause | None:
        """Take steps, the compiled ones by compiled code.

        Args:
            lent: whether this thread may take compiled steps only, and not wait.

        Returns:
            None when all are taken; else what says whether it can go on.

        Raises:
            StepFailed: a task's body, or another call of a row, raised.
        """
        end = len(self.entries)
        while self._at < end:
            ready = self._ready
            stretch = None if ready is None else ready.stretch(self._at)
            if ready is not None and stretch is not None and stretch.start <= self._at:
                self._at, pause = ready.take(stretch, self._at, self._times, lent=lent)
            elif lent:
                return _elsewhere
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

    def _interpret(self, end: int) -> Pause | None:
        """Take steps up to one of them without compiled code."""
        now, publish, base = perf_counter_ns, self._publish, self._base
        (begun, ended), taken, entries = self._times, base[self.processor], self.entries
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
            begun[first] = now()
            if call is not None:
                try:
                    call()
                except BaseException as error:
                    raise StepFailed(row) from error
            ended[row] = now()
            if steps:
                publish(taken + steps)
        self._at = end
        return None


def _elsewhere() -> bool:
    """Say of a lane that is lent that another thread must go on with it."""
    return False


def _compilable(entry: Entry) -> bool:
    """Say whether a step's call may be compiled, as far as can be seen without compiling."""
    call = entry.call
    return isinstance(call, BoundTask) and isinstance(call.body, CompiledBody) and not call.identities


class CompiledLane:
    """The compiled steps of a lane.

    Args:
        lane: all its steps, as they are called in the run at hand.
        table: how the values of a run are laid out.
        rows: of the schedule; what belongs to none is noted behind them.
    """

    def __init__(self, lane: LaneProgram, table: ValueTable, rows: int) -> None:
        from maniple.runtime import lane_kernel

        self._kernel = lane_kernel
        self._entries = lane.entries
        self._progress = lane.progress
        self._wire = lane.wire
        self._rows = rows
        self._table = table
        self._values = 0
        self._bases = [lane.processor, RUN]
        self.stretches = self._stretches()
        self._ends = [stretch.end for stretch in self.stretches]
        self._base = array("q", bytes(8 * len(self._bases)))
        self._told = array("q", bytes(16))
        self._counter = lane.progress.processor(lane.processor) if lane.progress.watched else 0

    def _stretches(self) -> list[Stretch]:
        """Compile as many steps in a row as can be; where no task is among them it would not pay."""
        found: list[Stretch] = []
        table, at, tasks = array("q"), [0], 0
        for index, entry in enumerate([*self._entries, None]):
            row = None if entry is None else self._row(entry)
            if row is not None:
                table.extend(row)
                at.append(8 * len(table))
                tasks += isinstance(entry, Entry) and isinstance(entry.call, BoundTask)
                continue
            if tasks:
                place = table.buffer_info()[0]
                found.append(Stretch(index - len(at) + 1, index, table, [place + offset for offset in at]))
            table, at, tasks = array("q"), [0], 0
        return found

    def _row(self, entry: Entry) -> list[int] | None:
        """Give a step as words; None if it cannot be compiled."""
        if any(counter < 0 for _, _, counter, _ in entry.waits):
            return None
        function, block = self._kernel.NOTHING, list[int]()
        if isinstance(entry.call, Push):
            box = entry.call.box(self._kernel.COPY_AXES)
            if box is None:
                return None
            function, block = self._kernel.COPY, box
        elif isinstance(entry.call, BoundTask):
            leaf = entry.call.leaf(self._table) if _compilable(entry) else None
            if leaf is None:
                return None
            function, block = leaf
        elif isinstance(entry.call, Meeting):
            function, block = self._kernel.MEET, entry.call.block()
        elif entry.call is not None:
            return None
        first, row = (self._rows if number < 0 else number for number in (entry.first, entry.row))
        words = [0, first, row, function, 0, entry.steps, len(entry.waits), len(entry.lands)]
        for _, where, counter, value in entry.waits:
            if counter not in self._bases:
                self._bases.append(counter)
            words += (where, self._bases.index(counter), value)
        for before, landed in entry.lands:
            words += (self._rows if before < 0 else before, landed)
        words[4] = len(words)
        words += block
        words[0] = len(words)
        return words

    def stretch(self, at: int) -> Stretch | None:
        """Give the stretch that a step lies in, or the next one after it."""
        found = bisect_right(self._ends, at)
        return self.stretches[found] if found < len(self._ends) else None

    def begin(self, number: int, calls: Calls, base: dict[int, int]) -> bool:
        """Get ready for a run; False where the interpreter must take it."""
        if not self.stretches or not calls.table:
            return False
        self._values = calls.table
        for slot, counter in enumerate(self._bases):
            self._base[slot] = number if counter == RUN else base[counter]
        return True

    def take(
        self, stretch: Stretch, first: int, times: tuple[array[int], array[int]], *, lent: bool
    ) -> tuple[int, Pause | None]:
        """Take a stretch's steps.

        Args:
            stretch: the steps.
            first: the one to begin with.
            times: where to note their beginnings and their ends.
            lent: whether to come back from what must be waited for longer than by spinning.

        Returns:
            The step after the last one taken, an earlier one than the end where a rank was met anew; and what says
            whether that can be taken, if it was left for that.

        Raises:
            StepFailed: a task's body raised.
        """
        kernel, told = self._kernel, self._told
        places = [held.buffer_info()[0] for held in (self._base, *times, told)]
        at, end = stretch.at[first - stretch.start], stretch.at[-1]
        since = perf_counter()
        while True:
            outcome = kernel.take_steps(
                at,
                end,
                places[0],
                self._values,
                places[1],
                places[2],
                self._counter,
                LOOKS,
                kernel.CLOCK,
                kernel.CLOCK_ID,
                places[3],
            )
            at = told[0]
            self._wire.written += told[1]
            if outcome == kernel.DONE:
                return stretch.end, None
            index = stretch.start + stretch.at.index(at)
            entry = self._entries[index]
            if outcome == kernel.FAILED:
                self._raise(entry)
            if lent:
                if outcome == kernel.WAITING and self._progress.spins(since):
                    continue
                return index, _elsewhere
            if isinstance(entry.call, Meeting):
                entry.call()
                if outcome == kernel.MOVED:
                    return index + 1, None
            for _, where, counter, value in entry.waits:
                reached = int(self._base[self._bases.index(counter)]) + value
                if not self._progress.wait(where, reached):
                    return index, partial(self._progress.wait, where, reached)

    def _raise(self, entry: Entry) -> None:
        """Raise what a compiled body raised, which is known only once it is called again; its regions are lost anyway.

        Raises:
            StepFailed: always.
        """
        task = cast("BoundTask", entry.call)
        try:
            task()
        except Exception as error:
            raise StepFailed(entry.row) from error
        raise StepFailed(entry.row) from RunError("the compiled body raised, and did not when it was called again")
