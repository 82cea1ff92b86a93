"""Lifetimes: which instances of a rank can never be alive at the same time, whatever order its steps end in. Pure.

An instance is alive from the start of the first step that uses it to the end of the last one, in every run. What is
ordered is what lanes make sure of: a lane takes its steps one after another, a step begins after those that it waits
for have ended, and so on from there, into the next run, which may begin while this one is under way. The clock and the
order of the program say nothing. For each step and lane, *after* is the first step of the lane that cannot begin
before the step has ended; so one instance is through before another begins where each use of the latter begins with a
step that is not before the largest *after* of the former's steps in that step's lane (vector clocks: Fidge, 1988;
Mattern, 1989). Where two instances take turns for ever is then

    end of A in run k  <=  beginning of B in run k,  and  end of B in run k  <=  beginning of A in run k + 1

Lane 0 is that of the memory in question; lane 1 pushes X into it. b waits for a, c for b, and the next run's b for c:

    ====  ======================  ===========  =====================
    step  lane 0                  lane 1       after it, in lanes 0, 1
    ====  ======================  ===========  =====================
    0     a writes A              b pushes X   a: 1, 0    b: 1, -
    1     c uses A, X, writes C                c: 2, -
    2     d uses C, writes D                   d: -, -    next run: 0, 0
    ====  ======================  ===========  =====================

D may lie where A lay: d is behind c in its lane, and the next run's a behind d. It may lie where X lay, too: the next
b waits for a, which is behind d. Were there no such wait, X of the next run could come while D is alive, for c is all
that b then waits for; so D and X would each have a place.

What a copy engine moves is started by a step of a lane and goes on after it; its end is a step of no lane, for which
others wait. So a use says by itself with which steps it begins and with which it has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from maniple.runtime.schedule.step_table import BEGIN, CARRIED, END, INSTANCE, NEED, NEVER, STEP

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from maniple.runtime.schedule.step_table import Bits, Clock, Column, StepTable, Table

__all__: list[str] = []


@dataclass(frozen=True, eq=False, slots=True)
class Lifetimes:
    """When some instances begin and end to be alive.

    Args:
        numbers: the instances, ascending; other columns have a row for each.
        starts: where the beginnings of each start, and the end of all.
        begins: its first uses, as (lane, index, lane, index): each begins after both steps. What follows from another
            of its uses is left out.
        ended: the first step of each lane that begins after all its uses.
        renewed: the same among the steps of the next run.
        spans: between which places in the order of all steps it is alive where these are taken one by one.
    """

    numbers: tuple[int, ...]
    starts: Column
    begins: Table
    ended: Clock
    renewed: Clock
    spans: Table

    def clashes(self, rows: Sequence[int] | Column) -> Bits:
        """Say which of some instances, given by their rows, may be alive together with which."""
        from maniple.runtime.schedule.memory.lifetime_kernels import clashes

        return clashes(np.asarray(rows, np.int64), self.starts, self.begins, self.ended, self.renewed)

    def peak(self, rows: Sequence[int] | Column, sizes: Column) -> int:
        """Sum what is alive at once, at most, where steps are taken one by one: no plan of these needs less."""
        spans = self.spans[np.asarray(rows, np.int64)]
        change = np.zeros(int(spans.max(initial=0)) + 2, np.int64)
        np.add.at(change, spans[:, 0], sizes)
        np.subtract.at(change, spans[:, 1] + 1, sizes)
        return int(np.cumsum(change).max())


def lifetimes(table: StepTable, instances: Collection[int]) -> Lifetimes:
    """Find when instances are alive.

    Args:
        table: the steps.
        instances: which ones.
    """
    numbers = np.asarray(sorted(instances), np.int64)
    wanted = np.zeros(1 + max(table.uses[:, INSTANCE].max(initial=0), numbers.max(initial=0)), dtype=np.bool_)
    wanted[numbers] = True
    used = table.uses[wanted[table.uses[:, INSTANCE]]]
    used = used[np.lexsort((used[:, BEGIN], used[:, INSTANCE]))]
    starts = np.searchsorted(used[:, INSTANCE], np.append(numbers, NEVER))
    if len(numbers) < 2:  # nothing takes turns
        none = np.zeros((len(numbers), table.lanes), np.int32)
        starts, begins, ended, renewed = 0 * starts, np.empty((0, 4), np.int64), none, none
    else:
        from maniple.runtime.schedule.memory import lifetime_kernels

        clocks = lifetime_kernels.clocks(table.lanes, table.lane, table.index, *_sorted_waits(table))
        ended, renewed = (lifetime_kernels.latest(clock, starts, used) for clock in clocks)
        starts, begins = lifetime_kernels.first_uses(table.lane, table.index, starts, used)
    return Lifetimes(tuple(numbers.tolist()), starts, begins, ended, renewed, _spans(numbers, used))


def _sorted_waits(table: StepTable) -> tuple[Column, Column, Table]:
    """Compress the waits within a run: where those of each step start, and what it waits for; and give all others."""
    carried = table.waits[:, CARRIED] > 0
    within = table.waits[~carried]
    within = within[np.argsort(within[:, STEP], kind="stable")]
    starts = np.searchsorted(within[:, STEP], np.arange(len(table.lane) + 1))
    return starts, np.ascontiguousarray(within[:, NEED]), np.ascontiguousarray(table.waits[carried])


def _spans(numbers: Column, used: Table) -> Table:
    """Give the first and the last step at which each instance is surely alive."""
    place = np.searchsorted(numbers, used[:, INSTANCE])
    spans = np.empty((len(numbers), 2), np.int64)
    spans[:, 0], spans[:, 1] = NEVER, -1
    np.minimum.at(spans[:, 0], place, used[:, END])
    np.maximum.at(spans[:, 1], place, used[:, BEGIN])
    spans[:, 0] = np.where(spans[:, 0] == NEVER, 0, spans[:, 0])
    spans[:, 1] = np.maximum(spans[:, 0], spans[:, 1])
    return spans
