"""Lifetimes against an oracle that draws every beginning and end of two runs and asks what lies before what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from maniple.runtime.schedule.memory.lifetime import Lifetimes, lifetimes
from maniple.runtime.schedule.step_table import StepTable

RUNS = 2
Use = tuple[int, int, int, int, int]
Node = tuple[int, str, int, bool]  # run, what, its number, whether its end


@dataclass
class Drawn:
    """Steps as they are drawn; lane -1 is that of the ends of movements."""

    lanes: list[int] = field(default_factory=list)
    waits: list[tuple[int, int, bool]] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)

    def add(self, lane: int, *needs: int) -> int:
        """Add a step that waits for others."""
        step = len(self.lanes)
        self.lanes.append(lane)
        self.waits += [(step, need, False) for need in needs]
        return step

    def use(self, step: int, *instances: int) -> None:
        """Have a step use some instances."""
        self.uses += [(instance, *(step,) * 4) for instance in instances]

    def lifetimes(self, instances: Sequence[int]) -> Lifetimes:
        """When the instances are alive."""
        places = [self.lanes[:step].count(lane) for step, lane in enumerate(self.lanes)]
        lanes = np.asarray(self.lanes, np.int64)
        waits, uses = (
            np.asarray(rows, np.int64).reshape(-1, width) for rows, width in ((self.waits, 3), (self.uses, 5))
        )
        return lifetimes(StepTable(1 + max(self.lanes), lanes, np.asarray(places, np.int64), waits, uses), instances)


@st.composite
def orders(draw: st.DrawFn) -> Drawn:
    """Steps of up to three lanes, each after those of its run that it needs, and tiles that go from one to another."""
    lanes, drawn = draw(st.integers(1, 3)), Drawn()
    instances = st.integers(0, 4)
    for _ in range(draw(st.integers(1, 9))):
        known = range(len(drawn.lanes))
        needs = draw(st.lists(st.sampled_from(known), max_size=2)) if known else []
        step = drawn.add(draw(st.integers(0, lanes - 1)), *needs)
        own = [before for before in known if drawn.lanes[before] >= 0]
        if own and draw(st.integers(0, 3)) == 0:
            there = draw(st.sampled_from(own))
            ends = drawn.add(-1, step), drawn.add(-1, step, there)
            drawn.uses.append((draw(instances), step, step, *ends))
            drawn.uses.append((draw(instances), there, step, ends[1], ends[1]))
        else:
            drawn.use(step, *draw(st.lists(instances, max_size=2, unique=True)))
    for step in range(len(drawn.lanes)):
        needs = draw(st.lists(st.sampled_from(range(len(drawn.lanes))), max_size=1))
        drawn.waits += [(step, need, True) for need in needs if drawn.lanes[step] >= 0]
    return drawn


def reached(drawn: Drawn) -> dict[Node, set[Node]]:
    """For every beginning and end of a step or a use what comes later for certain."""
    after: dict[Node, set[Node]] = {
        (run, what, number, end): {(run, what, number, True)} - {(run, what, number, end)}
        for run in range(RUNS)
        for what, count in (("step", len(drawn.lanes)), ("use", len(drawn.uses)))
        for number in range(count)
        for end in (False, True)
    }
    latest: dict[int, Node] = {}
    for run in range(RUNS):
        for step, lane in enumerate(drawn.lanes):
            if lane in latest and lane >= 0:
                after[latest[lane]].add((run, "step", step, False))
            latest[lane] = run, "step", step, True
        for step, need, carried in drawn.waits:
            if run >= carried:
                after[run - carried, "step", need, True].add((run, "step", step, False))
        for number, (_, begin, or_begin, end, or_end) in enumerate(drawn.uses):
            for step in (begin, or_begin):
                after[run, "step", step, False].add((run, "use", number, False))
            after[run, "use", number, True] |= {(run, "step", step, True) for step in (end, or_end)}
    changed = True
    while changed:
        changed = False
        for node in sorted(after, reverse=True):
            more = set().union(*(after[later] for later in after[node])) - after[node]
            after[node] |= more
            changed |= bool(more)
    return after


@given(orders())
def test_instances_clash_exactly_where_they_may_be_alive_together(drawn: Drawn) -> None:
    after = reached(drawn)
    users: dict[int, list[int]] = {}
    for number, use in enumerate(drawn.uses):
        users.setdefault(use[0], []).append(number)

    def through(one: int, other: int, later: int) -> bool:
        """Whether all uses of one instance have ended before any of another in the same run or the next."""
        return all((later, "use", b, False) in after[0, "use", a, True] for a in users[one] for b in users[other])

    alive = drawn.lifetimes(sorted(users))
    found = alive.clashes(range(len(users)))
    assert not found.diagonal().any()
    for row, one in enumerate(alive.numbers):
        for column, other in enumerate(alive.numbers):
            if other != one:
                turns = (through(one, other, 0) and through(other, one, 1)) or (
                    through(other, one, 0) and through(one, other, 1)
                )
                assert found[row, column] == (not turns), (one, other)


def example(*, waits: bool) -> Drawn:
    """The steps of the table in the module."""
    drawn = Drawn()
    a = drawn.add(0)
    b = drawn.add(1, *([a] if waits else []))
    c = drawn.add(0, b)
    d = drawn.add(0)
    drawn.waits.append((b, c, True))
    for step, instances in ((a, (0,)), (b, (1,)), (c, (0, 1, 2)), (d, (2, 3))):
        drawn.use(step, *instances)
    return drawn


def test_the_table_of_the_module() -> None:
    a, x, c, d = range(4)
    for waits, clash in ((True, False), (False, True)):
        alive = example(waits=waits).lifetimes(range(4))
        assert alive.clashes([d, a, x, c])[0].tolist() == [False, False, clash, True]
        assert alive.clashes([a, x, c])[0].tolist() == [False, True, True]


def test_the_peak_counts_what_is_alive_one_step_after_another() -> None:
    """a holds A; b adds X; c uses A, X and C; d uses C and D."""
    alive = example(waits=True).lifetimes(range(4))
    assert alive.peak(range(4), np.asarray([100, 10, 1, 1000])) == 1001
    assert alive.peak(range(4), np.asarray([100, 10, 1, 50])) == 111
    assert alive.peak([1, 2], np.asarray([10, 1])) == 11
