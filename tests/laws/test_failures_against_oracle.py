"""Failures reach what depends on them and nothing else: programs whose tasks fail at drawn places, against numpy.

Hypothesis draws programs over three regions of eight elements in tiles of two. The oracle runs them one launch after
the other and keeps beside each element which failure it goes back to. Whatever the program reads must be the value, or
an error that names that failure; whatever is refused must be refused for it; and each failure must be told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_ranks import run_on_ranks

import maniple as mp
from maniple.mappers.registry import make_mapper
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.machine.world_machine import host_machine
from maniple.runtime.program.future import FutureMap
from maniple.runtime.schedule.failure import PoisonedRegion, TaskFailed
from maniple.runtime.session.session import Session

SIZE, TILES = 8, 4
TILE = SIZE // TILES
KINDS = ("make", "add", "fold", "shift")
Cause = tuple[int, int]


def raises(bad: list[int], color: int) -> None:
    number, *colors = bad
    if color in colors:
        raise ValueError(f"launch {number} point {color}")


@mp.task
def make(color: mp.Color, bad: list, value: float, x: mp.Read, y: mp.WriteDiscard) -> float:  # type: ignore[type-arg]
    y[:1] = -5.0
    raises(bad, color[0])
    y.fill_(value)
    return value


@mp.task
def add(color: mp.Color, bad: list, value: float, x: mp.Read, y: mp.ReadWrite) -> float:  # type: ignore[type-arg]
    y[:1] -= 7.0
    raises(bad, color[0])
    y[:1] += 7.0
    y += value * x
    return float(y.sum())


@mp.task
def fold(color: mp.Color, bad: list, value: float, x: mp.Read, y: mp.ReduceSum) -> float:  # type: ignore[type-arg]
    y += 1.0
    raises(bad, color[0])
    y += value * x.sum() - 1.0
    return float(x.sum())


TASKS = {"make": make, "add": add, "shift": add, "fold": fold}


@dataclass(frozen=True)
class Launch:
    """An index launch over all tiles: which task, from which region to which, and which points fail."""

    kind: str
    source: int
    target: int
    bad: tuple[int, ...] = ()


@dataclass(frozen=True)
class Traced:
    """A run of the trace `make 2 0; shift 0 1; fold 1 2`, with the points of each that fail."""

    bad: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Wait:
    """A read of a region, a fill of one, a fence, or a look at the values of a launch before."""

    what: str
    number: int


@dataclass(eq=False)
class Oracle:
    """What the regions hold, and the failure that each element goes back to."""

    values: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros((3, SIZE)))
    causes: list[list[Cause | None]] = field(default_factory=lambda: [[None] * SIZE for _ in range(3)])
    told: set[Cause] = field(default_factory=set)
    roots: set[Cause] = field(default_factory=set)

    def of(self, region: int, places: slice) -> Cause | None:
        return min((cause for cause in self.causes[region][places] if cause is not None), default=None)

    def run(self, number: int, launch: Launch, value: float) -> list[float | Cause]:
        """Run a launch; gives for each point its value, or the failure that it goes back to."""
        found: list[float | Cause] = []
        before, causes = self.values.copy(), [list(each) for each in self.causes]
        for point in range(TILES):
            own = slice(point * TILE, point * TILE + TILE)
            other = own
            if launch.kind == "shift":
                other = slice((point + 1) % TILES * TILE, (point + 1) % TILES * TILE + TILE)
            whole = slice(0, SIZE) if launch.kind == "fold" else own
            read = [(launch.source, other), *([(launch.target, own)] if launch.kind in {"add", "shift"} else [])]
            known = [cause for r, places in read for cause in causes[r][places] if cause is not None]
            cause = min(known, default=None)
            if cause is None and point in launch.bad:
                cause = (number, point)
                self.roots.add(cause)
            x = before[launch.source, other]
            for place in range(SIZE)[whole] if cause is not None or launch.kind == "make" else ():
                if launch.kind != "fold" or self.causes[launch.target][place] is None:
                    self.causes[launch.target][place] = cause
            if launch.kind == "make":
                self.values[launch.target, own] = value
                result = value
            elif launch.kind == "fold":
                self.values[launch.target] += value * x.sum()
                result = float(x.sum())
            else:
                self.values[launch.target, own] = before[launch.target, own] + value * x
                result = float(self.values[launch.target, own].sum())
            found.append(result if cause is None else cause)
        return found

    def reads(self, launch: Launch) -> Cause | None:
        """The failure for which a launch may be refused."""
        return self.any(*((launch.source, launch.target) if launch.kind in {"add", "shift"} else (launch.source,)))

    def any(self, *regions: int) -> Cause | None:
        return next((cause for r in regions if (cause := self.of(r, slice(0, SIZE))) is not None), None)


def named(error: BaseException) -> list[Cause]:
    return [(int(a), int(b)) for a, b in re.findall(r"ValueError: launch (\d+) point (\d+)", str(error))]


class Program:
    """One rank's run of a drawn program beside the oracle's."""

    def __init__(self, session: Session) -> None:
        self.session, self.oracle = session, Oracle()
        self.regions = [session.region((SIZE,), "float64", f"r{number}") for number in range(3)]
        self.tiles = mp.blocks((TILES,))
        for region in self.regions:
            region.fill(0.0)
        self.made: list[tuple[FutureMap, list[float | Cause]]] = []
        self.runs = 0
        self.said: list[object] = []

    def heard(self, call: Callable[[], Any]) -> Any:
        """Call, again after each failure that is told first; says how it ended."""
        while True:
            try:
                return call()
            except TaskFailed as error:
                self.hear(error)

    def hear(self, failure: TaskFailed) -> None:
        causes = named(failure)
        assert causes
        assert causes[0] == min(causes)
        assert set(causes) <= self.oracle.roots, "what failed was told, and nothing else"
        assert not set(causes) & self.oracle.told, "nothing is told twice"
        self.oracle.told |= set(causes)
        self.said.append(causes)
        assert isinstance(failure.__cause__, ValueError) == failure.here

    def start(self, launch: Launch, number: int) -> FutureMap:
        x, y = (self.regions[r] for r in (launch.source, launch.target))
        source = x[self.tiles].shift(1, periodic=True) if launch.kind == "shift" else x[self.tiles]
        target = y if launch.kind == "fold" else y[self.tiles]
        return self.session.index_launch(TASKS[launch.kind], TILES, [number, *launch.bad], 2.0, source, target)

    def launch(self, launch: Launch) -> None:
        self.runs += 1
        number = self.runs
        # What has not been heard may be, by a program of one rank, at this call or later.
        if (future := self.accepted(lambda: self.start(launch, number), lambda: self.oracle.reads(launch))) is not None:
            self.made.append((future, self.oracle.run(number, launch, 2.0)))

    def accepted(self, call: Callable[[], Any], reason: Callable[[], Cause | None]) -> Any:
        """Call; None where it was refused, which must be for a reason."""
        try:
            return self.heard(call)
        except PoisonedRegion as error:
            self.refused(error, reason())
            return None

    def refused(self, refusal: PoisonedRegion, reason: Cause | None) -> None:
        assert reason is not None
        assert named(refusal)
        assert set(named(refusal)) <= self.oracle.told
        assert isinstance(refusal.__cause__, TaskFailed)
        self.said.append(str(refusal))

    def trace(self, traced: Traced) -> None:
        self.runs += 3
        first = self.runs - 2
        steps = [Launch("make", 2, 0, traced.bad[0]), Launch("shift", 0, 1, traced.bad[1]), Launch("fold", 1, 2)]

        def replayed() -> list[FutureMap]:
            with self.session.trace("t"):
                return [self.start(step, first + place) for place, step in enumerate(steps)]

        if "t" in self.session.tracing.traces:  # all of it starts, or nothing
            for place, future in enumerate(self.accepted(replayed, partial(self.oracle.any, 1, 2)) or ()):
                self.made.append((future, self.oracle.run(first + place, steps[place], 2.0)))
            return

        def record() -> None:
            with self.session.trace("t"):
                for place, step in enumerate(steps):
                    future = self.heard(partial(self.start, step, first + place))
                    self.made.append((future, self.oracle.run(first + place, step, 2.0)))

        self.accepted(record, partial(self.oracle.any, 0, 1, 2))

    def wait(self, step: Wait) -> None:
        region = self.regions[step.number]
        if step.what == "fence":
            self.heard(self.session.fence)
            assert self.oracle.told == self.oracle.roots
        elif step.what == "fill":
            self.heard(lambda: region.fill(4.0))
            self.oracle.values[step.number] = 4.0
            self.oracle.causes[step.number] = [None] * SIZE
        elif step.what == "read":
            self.read(step.number)
        elif self.made:
            future, values = self.made[step.number % len(self.made)]
            for point, value in enumerate(values):
                if isinstance(value, tuple):
                    with pytest.raises(TaskFailed) as caught:
                        self.known(lambda point=point: future[point], value)  # type: ignore[misc]
                    assert named(caught.value)[0] == value
                else:
                    assert self.heard(lambda point=point: future[point]) == value  # type: ignore[misc]

    def known(self, call: Callable[[], Any], cause: Cause) -> Any:
        """Call until the failure that comes is one that was told before."""
        while True:
            try:
                return call()
            except TaskFailed as error:
                if cause in self.oracle.told:
                    raise
                self.oracle.told |= set(named(error))

    def read(self, number: int) -> None:
        cause = self.oracle.of(number, slice(0, SIZE))
        try:
            found = self.heard(self.regions[number].read)
        except PoisonedRegion as error:
            self.refused(error, cause if named(error) == [cause] else None)
            return
        assert cause is None
        assert found.tolist() == self.oracle.values[number].tolist()
        self.said.append(found.tolist())


points = st.lists(st.integers(0, TILES - 1), max_size=2, unique=True).map(tuple)
seldom = st.one_of(st.just(()), st.just(()), points)
pairs = st.permutations(range(3)).map(lambda order: order[:2])
launches = st.builds(lambda kind, ends, bad: Launch(kind, *ends, bad), st.sampled_from(KINDS), pairs, seldom)
waits = st.builds(Wait, st.sampled_from(("read", "read", "fill", "fence", "value")), st.integers(0, 2))
traces = st.builds(Traced, st.tuples(seldom, seldom))
programs = st.lists(st.one_of(launches, launches, waits, traces), min_size=2, max_size=14)


def played(world: World, steps: list[Launch | Traced | Wait]) -> list[object]:
    program = Program(Session(RankRuntime.of(world), host_machine(world), make_mapper("default")))
    for step in steps:
        if isinstance(step, Launch):
            program.launch(step)
        elif isinstance(step, Traced):
            program.trace(step)
        else:
            program.wait(step)
    program.wait(Wait("fence", 0))
    for number in range(3):
        program.read(number)
    return program.said


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@settings(max_examples=25, deadline=None)
@given(programs)
def test_a_program_of_one_rank_reads_what_no_failure_reached(steps: list[Launch | Traced | Wait]) -> None:
    run_on_ranks(1, lambda world: played(world, steps), processors=2)


@pytest.mark.parametrize("shared", [False, True])
@settings(max_examples=10, deadline=None)
@given(steps=programs)
def test_ranks_hear_the_same_at_the_same_places(shared: bool, steps: list[Launch | Traced | Wait]) -> None:
    first, second = run_on_ranks(2, lambda world: played(world, steps), shared=shared)
    assert first == second
