"""Compiled lanes: the steps of a lane that compiled code takes, and that code's way through them."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, cast

from maniple.process.error import RunError
from maniple.runtime.lanes.lane_step import LaneStep, Meeting, StepFailed
from maniple.runtime.program.body import BoundTask
from maniple.runtime.program.variant import CompiledBody
from maniple.runtime.storage.copy_kernels import Push

if TYPE_CHECKING:
    from maniple.runtime.lanes.lane_step import Pause
    from maniple.runtime.lanes.progress import Progress
    from maniple.runtime.program.launch_execution import Calls
    from maniple.runtime.program.value_table import ValueTable
    from maniple.runtime.storage.copy_kernels import Wire

__all__: list[str] = []

RUN = -1
"""Stands for the number of the run among the bases, which are those of processors."""


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


def elsewhere() -> bool:
    """Say of a lane that a thread left, for it must not wait, that another one must go on with it."""
    return False


def compilable(entry: LaneStep) -> bool:
    """Say whether a step's call may be compiled, as far as can be seen without compiling."""
    call = entry.call
    return isinstance(call, BoundTask) and isinstance(call.body, CompiledBody) and not call.identities


class CompiledLane:
    """The compiled steps of a lane.

    Args:
        processor: whose.
        entries: all its steps, as they are called in the run at hand.
        progress: counters, and waits for them.
        wire: counts what the lane writes to other ranks.
        table: how the values of a run are laid out.
        rows: of the schedule; what belongs to none is noted behind them.
    """

    def __init__(
        self, processor: int, entries: list[LaneStep], progress: Progress, wire: Wire, table: ValueTable, rows: int
    ) -> None:
        from maniple.runtime.lanes import lane_kernel

        self._kernel = lane_kernel
        self._entries, self._progress, self._wire = entries, progress, wire
        self._rows = rows
        self._table = table
        self._values = 0
        self._bases = [processor, RUN]
        self.stretches = self._stretches()
        self._ends = [stretch.end for stretch in self.stretches]
        self._base = array("q", bytes(8 * len(self._bases)))
        self._told = array("q", bytes(16))
        self._counter = progress.processor(processor) if progress.watched else 0

    def _stretches(self) -> list[Stretch]:
        """Compile as many steps in a row as can be; where no task is among them it would not pay."""
        found: list[Stretch] = []
        table, at, tasks = array("q"), [0], 0
        for index, entry in enumerate([*self._entries, None]):
            row = None if entry is None else self._row(entry)
            if row is not None:
                table.extend(row)
                at.append(8 * len(table))
                tasks += isinstance(entry, LaneStep) and isinstance(entry.call, BoundTask)
                continue
            if tasks:
                place = table.buffer_info()[0]
                found.append(Stretch(index - len(at) + 1, index, table, [place + offset for offset in at]))
            table, at, tasks = array("q"), [0], 0
        return found

    def _row(self, entry: LaneStep) -> list[int] | None:
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
            leaf = entry.call.leaf(self._table) if compilable(entry) else None
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
        self, stretch: Stretch, first: int, times: tuple[array[int], array[int]], *, without_waiting: bool
    ) -> tuple[int, Pause | None]:
        """Take a stretch's steps.

        Args:
            stretch: the steps.
            first: the one to begin with.
            times: where to note their beginnings and their ends.
            without_waiting: whether to come back from what must be waited for longer than by spinning.

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
                self._progress.looks,
                kernel.CLOCK,
                kernel.CLOCK_ID,
                places[3],
            )
            self._progress.ring(self._counter)
            at = told[0]
            self._wire.written += told[1]
            if outcome == kernel.DONE:
                return stretch.end, None
            index = stretch.start + stretch.at.index(at)
            entry = self._entries[index]
            if outcome == kernel.FAILED:
                self._raise(entry, index)
            if without_waiting:
                if outcome == kernel.WAITING and self._progress.spins(since):
                    continue
                return index, elsewhere
            if isinstance(entry.call, Meeting):
                entry.call()
                if outcome == kernel.MOVED:
                    return index + 1, None
            for _, where, counter, value in entry.waits:
                reached = int(self._base[self._bases.index(counter)]) + value
                if not self._progress.wait(where, reached):
                    return index, partial(self._progress.wait, where, reached)

    def _raise(self, entry: LaneStep, index: int) -> None:
        """Raise what a compiled body raised, known only once it is called again; what it writes is poisoned anyway.

        Raises:
            StepFailed: always.
        """
        task = cast("BoundTask", entry.call)
        try:
            task()
        except Exception as error:
            raise StepFailed(entry.row, index) from error
        raise StepFailed(entry.row, index) from RunError(
            "the compiled body raised, and did not when it was called again"
        )
