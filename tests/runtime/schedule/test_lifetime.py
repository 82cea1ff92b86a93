"""Lifetimes against an oracle that draws every beginning and end of two runs and asks what lies before what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from maniple.regions.rectangle import Rect
from maniple.runtime.schedule.lifetime import lifetimes

ALL = Rect((0,), (1,))
RUNS = 2


@dataclass(eq=False)
class Taken:
    """A step of a lane; `needs` are filled in once all steps are there."""

    processor: int
    index: int
    instances: tuple[int, ...] = ()
    begins_only: bool = False
    needs: list[tuple[Taken, bool]] = field(default_factory=list)

    @property
    def touches(self) -> Sequence[tuple[int, Rect, bool]]:
        return [(instance, ALL, True) for instance in self.instances]


@st.composite
def orders(draw: st.DrawFn) -> list[Taken]:
    """Steps of up to three lanes, each after those of its run that it needs."""
    lanes = draw(st.integers(1, 3))
    counts = [0] * lanes
    order: list[Taken] = []
    for _ in range(draw(st.integers(1, 9))):
        lane = draw(st.integers(0, lanes - 1))
        instances = draw(st.lists(st.integers(0, 4), max_size=2, unique=True))
        step = Taken(lane, counts[lane], tuple(instances), draw(st.integers(0, 4)) == 0)
        counts[lane] += 1
        if order:
            step.needs += [(need, False) for need in draw(st.lists(st.sampled_from(order), max_size=2))]
        order.append(step)
    for step in order:
        step.needs += [(need, True) for need in draw(st.lists(st.sampled_from(order), max_size=1))]
    return order


def reached(order: list[Taken]) -> dict[tuple[int, int, bool], set[tuple[int, int, bool]]]:
    """For every (run, step, whether its end) what comes later for certain."""
    place = {id(step): number for number, step in enumerate(order)}
    after: dict[tuple[int, int, bool], set[tuple[int, int, bool]]] = {
        (run, number, end): set() for run in range(RUNS) for number in range(len(order)) for end in (False, True)
    }
    latest: dict[int, tuple[int, int, bool]] = {}
    for run in range(RUNS):
        for number, step in enumerate(order):
            after[run, number, False].add((run, number, True))
            if step.processor in latest:
                after[latest[step.processor]].add((run, number, False))
            latest[step.processor] = (run, number, not step.begins_only)
            for need, carried in step.needs:
                if run >= carried:
                    after[run - carried, place[id(need)], True].add((run, number, False))
    changed = True
    while changed:
        changed = False
        for node in sorted(after, reverse=True):
            more = set().union(*(after[later] for later in after[node])) - after[node]
            after[node] |= more
            changed |= bool(more)
    return after


@given(orders())
def test_instances_clash_exactly_where_they_may_be_alive_together(order: list[Taken]) -> None:
    after = reached(order)
    users = {
        instance: [number for number, step in enumerate(order) if instance in step.instances]
        for instance in sorted({instance for step in order for instance in step.instances})
    }

    def through(one: int, other: int, later: int) -> bool:
        """Whether all uses of one instance have ended before any of another in the same run or the next."""
        return all((later, b, False) in after[0, a, True] for a in users[one] for b in users[other])

    alive = lifetimes(order, users)
    rows = range(len(users))
    for row, one in enumerate(users):
        found = dict(zip(users, alive.clashes(row, rows).tolist(), strict=True))
        for other in users:
            if other != one:
                turns = (through(one, other, 0) and through(other, one, 1)) or (
                    through(other, one, 0) and through(one, other, 1)
                )
                assert found[other] == (not turns), (one, other)


def example(*, waits: bool) -> list[Taken]:
    """The steps of the table in the module."""
    a, b = Taken(0, 0, (0,)), Taken(1, 0, (1,))
    c, d = Taken(0, 1, (0, 1, 2)), Taken(0, 2, (2, 3))
    b.needs += [(a, False)] if waits else []
    b.needs.append((c, True))
    c.needs.append((b, False))
    return [a, b, c, d]


def test_the_table_of_the_module() -> None:
    a, x, c, d = range(4)
    for waits, clash in ((True, False), (False, True)):
        alive = lifetimes(example(waits=waits), range(4))
        assert alive.clashes(d, [a, x, c]).tolist() == [False, clash, True]
        assert alive.clashes(a, [x, c]).tolist() == [True, True]


def test_the_peak_counts_what_is_alive_one_step_after_another() -> None:
    """a holds A; b adds X; c uses A, X and C; d uses C and D."""
    alive = lifetimes(example(waits=True), range(4))
    assert alive.peak([100, 10, 1, 1000]) == 1001
    assert alive.peak([100, 10, 1, 50]) == 111
