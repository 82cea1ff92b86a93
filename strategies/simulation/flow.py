"""Flows: a simulated run without a flush among those before and after it.

The rows of the run are those of the ledger; what they wait for in the run before says the runtime's own lowering of the
same launches, whose rows are numbered by the same keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.lowering.step_program import FragmentCache, lower
from maniple.process.error import RunError
from maniple.strategies.simulation.allocation import taken_bytes
from maniple.strategies.timing.steady_state import Overlap, SteadyState, steady_state
from maniple.strategies.timing.tables import DURATION, END, READY

if TYPE_CHECKING:
    from collections.abc import Collection

    from maniple.operators.lowering.step_program import Program
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.network import Column
    from maniple.runtime.schedule.schedule import Schedule
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.timing.ledger import Ledger
    from maniple.strategies.timing.tables import Table

__all__: list[str] = []

DRAWN = 4
"""So many runs are drawn after the ramp."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """A run in the steady state.

    Args:
        schedule: the run as the runtime has it.
        lasting: ids of the regions that outlive it.
        state: the times.
        rows: of the ledger, with the times of a run in the steady state from where it begins.
        makespan: what that run takes by itself, from its first row to its last.
        alive: the number in the ledger of each row of the schedule.
    """

    schedule: Schedule
    lasting: Collection[int]
    state: SteadyState
    rows: Table
    makespan: int
    alive: Column

    @classmethod
    def of(cls, program: Program, machine: Machine, ledger: Ledger) -> Flow:
        """Time a run of a program whose rows are in a ledger.

        Raises:
            RunError: the rows are others than those that run, or wait for each other in a circle.
        """
        schedule = lower(program, FragmentCache(machine))
        alive = ledger.alive.astype(np.int64)
        if len(schedule) != len(alive):
            raise RunError(
                f"simulation: expected the {len(schedule)} rows that run, got {len(alive)}; this is a defect: report it"
            )
        starts, after = schedule.carried
        carried = np.stack([np.repeat(np.arange(len(schedule)), np.diff(starts)), after], axis=1)
        processors = np.unique(schedule.processor[schedule.processor >= 0])
        lanes = {int(each): np.flatnonzero(schedule.processor == each) for each in processors}
        state = steady_state(Overlap(ledger.columns(), carried, np.asarray(schedule.lags, np.int64), lanes))
        begin, end = state.last_run()
        rows = ledger.rows.copy()
        rows[alive, READY], rows[alive, END], rows[alive, DURATION] = begin, end, end - begin
        return cls(schedule, program.lasting, state, rows, int(end.max(initial=0)), alive)

    def allocated_bytes(self, costs: CostModel) -> tuple[int, ...]:
        """What it takes of each memory; see ``allocation``."""
        return taken_bytes(self.schedule, self.lasting, costs)

    def lag(self, row: int) -> int:
        """How many runs ago began what a row of the ledger works on."""
        return self.schedule.lags[int(np.flatnonzero(self.alive == row)[0])]

    def drawn(self) -> list[tuple[Column, Column]]:
        """Of the runs of the ramp and of some after it the begins and ends of rows, by their numbers in the ledger."""
        ramp = max(self.schedule.lags, default=0)
        durations = self.state.timed.columns[0]
        found = []
        for run in range(min(self.state.runs, ramp + DRAWN)):
            begins = np.zeros(len(self.rows), dtype=np.int64)
            ends = begins.copy()
            begins[self.alive] = self.state.begin[run]
            ends[self.alive] = self.state.begin[run] + durations[run * self.state.rows : (run + 1) * self.state.rows]
            found.append((begins, ends))
        return found
