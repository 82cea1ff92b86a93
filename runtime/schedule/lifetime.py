"""Lifetimes: which instances of a rank can never be alive at the same time, whatever order its steps end in. Pure.

An instance is alive from the start of the first step that uses it to the end of the last one, in every run. What is
ordered is what lanes make sure of: a lane takes its steps one after another, a step begins after those that it waits
for have ended, and so on from there, into the next run, which may begin while this one is under way. The clock and the
order of the program say nothing. For each step and lane, *after* is the first step of the lane that cannot begin
before the step has ended; so one instance is through before another begins where the latter's first step in every lane
is not before the largest *after* of the former's steps (vector clocks: Fidge, 1988; Mattern, 1989). Where two instances
take turns for ever is then

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
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from maniple.regions.index_space import IndexSpace

    Clock = npt.NDArray[np.int32]

__all__: list[str] = []

NEVER = np.iinfo(np.int32).max
"""Later than any step of a lane."""


class Step(Protocol):
    """A step of some lane."""

    @property
    def processor(self) -> int:
        """Whose lane it is in."""
        ...

    @property
    def index(self) -> int:
        """Its place there."""
        ...

    @property
    def begins_only(self) -> bool:
        """Whether the lane goes on before it has ended, so that only those who wait for it know that it has."""
        ...

    @property
    def touches(self) -> Sequence[tuple[int, IndexSpace, bool]]:
        """The instances that it uses."""
        ...

    @property
    def needs(self) -> Sequence[tuple[Step, bool]]:
        """The steps that it waits for, and whether their run before this one is meant."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class Lifetimes:
    """When some instances begin and end to be alive; rows are instances, columns lanes.

    Args:
        numbers: the instances.
        first: their first step in each lane.
        ended: the first step of each lane that begins after all their uses.
        renewed: the same among the steps of the next run.
        spans: their first and last use where the steps of all lanes are taken one by one, in one order.
    """

    numbers: tuple[int, ...]
    first: Clock
    ended: Clock
    renewed: Clock
    spans: Clock

    def clashes(self, one: int, others: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Say which of some instances may be alive together with one; all are given by their rows."""
        rows = np.asarray(others, dtype=np.intp)
        first, ended, renewed = self.first[rows], self.ended[rows], self.renewed[rows]
        before = (first >= self.ended[one]).all(1) & (self.first[one] >= renewed).all(1)
        behind = (self.first[one] >= ended).all(1) & (first >= self.renewed[one]).all(1)
        found: npt.NDArray[np.bool_] = np.logical_not(before | behind)
        return found

    def peak(self, sizes: Sequence[int]) -> int:
        """Sum what is alive at once, at most, where steps are taken one by one: no plan of these needs less."""
        change = np.zeros(int(self.spans.max(initial=0)) + 2, np.int64)
        np.add.at(change, self.spans[:, 0], sizes)
        np.subtract.at(change, self.spans[:, 1] + 1, sizes)
        return int(np.cumsum(change).max())


def lifetimes(order: Sequence[Step], instances: Collection[int]) -> Lifetimes:
    """Find when instances are alive.

    Args:
        order: the steps of all lanes, each after those that it waits for; those of a lane by their index.
        instances: which ones.
    """
    numbers = tuple(sorted(instances))
    place = {number: row for row, number in enumerate(numbers)}
    columns = {processor: column for column, processor in enumerate(sorted({step.processor for step in order}))}
    shape = len(numbers), len(columns)
    first, ended, renewed = np.full(shape, NEVER, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    spans = np.asarray([[len(order), -1]] * len(numbers), np.int32).reshape(-1, 2)
    if len(numbers) > 1:
        clocks = _Clocks(order, columns)
        for time, step in enumerate(order):
            column, index = columns[step.processor], step.index
            for row in {place[touch[0]] for touch in step.touches if touch[0] in place}:
                first[row, column] = min(first[row, column], index)
                np.maximum(ended[row], clocks.ended[time], out=ended[row])
                np.maximum(renewed[row], clocks.renewed[time], out=renewed[row])
                spans[row] = min(spans[row, 0], time), time
    return Lifetimes(numbers, first, ended, renewed, spans)


class _Clocks:
    """For every step, by its place in the order, the first step of each lane that begins after it has ended.

    Args:
        order: the steps.
        columns: the column of each lane.
    """

    def __init__(self, order: Sequence[Step], columns: Mapping[int, int]) -> None:
        self._order, self._columns = order, columns
        self._time = {id(step): time for time, step in enumerate(order)}
        self._before = [-1] * len(order)
        latest: dict[int, int] = {}
        for time, step in enumerate(order):
            self._before[time] = latest.get(step.processor, -1)
            latest[step.processor] = time
        shape = len(order), len(columns)
        self.ended, self.renewed = np.full(shape, NEVER, np.int32), np.full(shape, NEVER, np.int32)
        begun = np.full(shape, NEVER, np.int32)
        self._within(begun)
        self._across(begun, latest)

    def _within(self, begun: Clock) -> None:
        """Find those of the same run; `begun` gets what begins after a step has, its own place included."""
        following = np.full_like(begun, NEVER)
        for time in range(len(self._order) - 1, -1, -1):
            step, ended = self._order[time], self.ended[time]
            np.minimum(ended, following[time], out=begun[time])
            if not step.begins_only:
                ended[:] = begun[time]
            begun[time, self._columns[step.processor]] = step.index
            self._tell(time, begun[time], self.ended, following)

    def _across(self, begun: Clock, last: Mapping[int, int]) -> None:
        """Find those of the next run, whose steps begin as `begun` says."""
        following = np.full_like(begun, NEVER)
        first: dict[int, int] = {}
        for time, step in enumerate(self._order):
            first.setdefault(step.processor, time)
            for need in self._needs(time, carried=True):
                np.minimum(self.renewed[need], begun[time], out=self.renewed[need])
        for processor, time in last.items():
            following[time] = begun[first[processor]]
        for time in range(len(self._order) - 1, -1, -1):
            known = np.minimum(self.renewed[time], following[time])
            if not self._order[time].begins_only:
                self.renewed[time] = known
            self._tell(time, known, self.renewed, following)

    def _tell(self, time: int, known: Clock, ended: Clock, following: Clock) -> None:
        """Have what is known after a step known after those that it comes after."""
        for need in self._needs(time, carried=False):
            np.minimum(ended[need], known, out=ended[need])
        if self._before[time] >= 0:
            before = following[self._before[time]]
            np.minimum(before, known, out=before)

    def _needs(self, time: int, *, carried: bool) -> Iterator[int]:
        return (self._time[id(need)] for need, before in self._order[time].needs if before == carried)
