"""Steady states: runs of a graph that follow each other and overlap, timed until one is like those before.

Two stages whose passes take one tick each; a run has forward of a mini-batch, and backward of stage 0 that of the one
before. Rows that have nothing to do yet are over at once.

    ticks     0  1  2  3  4  5  6  7
    stage 0   F0 F1 .  B0 F2 B1 F3 B2      a run every two ticks: the period
    stage 1   .  F0 B0 F1 B1 F2 B2 F3      the ramp ends with backward of mini-batch 0, at tick 4

A processor takes runs in order: no row of a run begins there before all rows of the run before are over. What a row
waits for in the run before is given, as is what it works on: a row of lag 1 works on what began a run ago.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

from maniple.process.error import RunError
from maniple.runtime.schedule.order import first_come
from maniple.runtime.schedule.schedule import csr

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maniple.runtime.schedule.network import Column
    from maniple.strategies.timing.ledger import Columns
    from maniple.strategies.timing.tables import Table

__all__: list[str] = []

LONGEST_CYCLE = 16
"""Of so many runs it is looked whether they come again."""
MOST_RUNS = 96
"""After so many runs that do not come again the mean of their second half is taken."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Overlap:
    """A run of a graph, and what it has to do with the run before.

    Args:
        columns: of the run: durations, holds, successors, number of lanes.
        carried: (row, row of the next run that waits for it).
        lags: how many runs ago began what each row works on.
        lanes: by processor the rows that are its own.
    """

    columns: Columns
    carried: Table
    lags: Column
    lanes: Mapping[int, Column]


class Timed(NamedTuple):
    """Rows with their times, and what they wait for and hold.

    Args:
        columns: durations, holds, successors, number of lanes.
        begin: of each row.
    """

    columns: Columns
    begin: Column

    @property
    def end(self) -> Column:
        """When each row ends."""
        return self.begin + self.columns[0]

    @property
    def ready(self) -> Column:
        """When all that each row waits for has ended."""
        starts, after = self.columns[2]
        found = np.zeros(len(self.begin), dtype=np.int64)
        np.maximum.at(found, after, np.repeat(self.end, np.diff(starts)))
        return found


@final
@dataclass(frozen=True, slots=True, eq=False)
class SteadyState:
    """Runs that follow each other, from the first on.

    Args:
        runs: so many are timed, one after the other in the tables; behind them stand rows that say that a processor is
            done with a run.
        rows: of a run.
        timed: the rows of all runs.
        cycle: after so many runs everything comes again.
        period_ns: from one run to the next, in the mean of a cycle.
        ramp_ns: until all that the first run gave is worked on.
        exact: whether it was seen that everything comes again; if not, the period is the mean of many runs.
    """

    runs: int
    rows: int
    timed: Timed
    cycle: int
    period_ns: int
    ramp_ns: int
    exact: bool

    @property
    def begin(self) -> Table:
        """By run and row when it begins."""
        return self.timed.begin[: self.runs * self.rows].reshape(self.runs, self.rows)

    def last_run(self) -> tuple[Column, Column]:
        """When the rows of the last run begin and end, from where the run begins."""
        begin = self.begin[-1] - self.begin[-1].min()
        return begin, begin + self.timed.columns[0][: self.runs * self.rows].reshape(self.runs, -1)[-1]


def steady_state(overlap: Overlap) -> SteadyState:
    """Time as many runs as it takes until they are like those before.

    Args:
        overlap: the run, and what it has to do with the one before.

    Raises:
        RunError: rows wait for each other in a circle.
    """
    longest, rows = int(overlap.lags.max(initial=0)), len(overlap.lags)
    runs = 2 * (longest + 1) + LONGEST_CYCLE
    while True:
        timed = _timed(overlap, runs)
        begin = timed.begin[: runs * rows].reshape(runs, rows)
        cycle = _cycle(begin, longest)
        if cycle or runs >= MOST_RUNS:
            break
        runs *= 2
    ramp = int((begin[overlap.lags, np.arange(rows)] + overlap.columns[0]).max(initial=0))
    behind = cycle or runs // 2
    taken = int((begin[-1] - begin[-1 - behind]).max(initial=0))
    return SteadyState(runs, rows, timed, behind, -(-taken // behind), ramp, bool(cycle))


def _cycle(begin: Table, longest: int) -> int:
    """After how many runs everything comes again; 0 where that is not seen."""
    for cycle in range(1, LONGEST_CYCLE // 2 + 1):
        step = begin[-1] - begin[-1 - cycle]
        before = begin[-1 - cycle] - begin[-1 - 2 * cycle]
        if len(begin) - 1 - 2 * cycle > longest and (step == step[:1]).all() and (before == step).all():
            return cycle
    return 0


def _timed(overlap: Overlap, runs: int) -> Timed:
    """The times of so many runs; what has nothing to do yet takes no time, and holds nothing for any."""
    durations, (starts, lanes, spans), (first, after), count = overlap.columns
    rows = len(durations)
    number = np.arange(runs)[:, None]
    works = (number >= overlap.lags[None, :]).ravel()
    owner = np.repeat(np.arange(rows), np.diff(starts))
    # Behind the rows of all runs, one for each run and processor: it is done with the run.
    done = runs * rows + np.arange(runs * len(overlap.lanes)).reshape(runs, len(overlap.lanes))
    total = runs * (rows + len(overlap.lanes))
    source = np.repeat(np.arange(rows), np.diff(first))
    pairs = [_repeated(np.stack([source, after], axis=1), rows, runs, 0)]
    carried = np.concatenate([overlap.carried, np.repeat(np.arange(rows)[:, None], 2, axis=1)])
    pairs.append(_repeated(carried, rows, runs - 1, 1))
    for place, own in enumerate(overlap.lanes.values()):
        every = (number * rows + own).ravel()
        ends = np.repeat(done[:, place], len(own))
        pairs.append(np.stack([every, ends], axis=1))
        pairs.append(np.stack([ends[: len(own) * (runs - 1)], every[len(own) :]], axis=1))
    waits = csr(total, np.concatenate(pairs))
    all_durations = np.concatenate([np.tile(durations, runs) * works, np.zeros(total - runs * rows, np.int64)])
    held_first = (number * starts[-1] + starts[:-1][None, :]).ravel()
    held_starts = np.concatenate([held_first, np.full(total - runs * rows + 1, runs * starts[-1])])
    all_spans = np.tile(spans, runs) * works.reshape(runs, rows)[:, owner].ravel()
    columns = all_durations, (held_starts, np.tile(lanes, runs), all_spans), waits, count
    begin, sequence, _ = first_come(*columns)
    if len(sequence) < total:
        raise RunError("simulation: the dependences form a circle; this is a defect of the lowering: report it")
    return Timed(columns, begin)


def _repeated(pairs: Table, rows: int, runs: int, later: int) -> Table:
    """Pairs of rows once for each run, of which the second is so many runs later."""
    shift = np.repeat(np.arange(runs) * rows, len(pairs))
    found: Table = np.tile(pairs, (runs, 1)) + np.stack([shift, shift + later * rows], axis=1)
    return found
