"""The order of a schedule: total, in agreement with every dependence, and enough to keep uses of an instance apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from happens_before import HappensBefore
from hypothesis import settings
from planned_step import lowered, plans

from maniple.regions import index_space
from maniple.regions.index_space import IndexSpace
from maniple.runtime.schedule.schedule import RowKind, Schedule, csr

pytestmark = pytest.mark.xdist_group("schedules")  # one worker lowers them, for all tests here
SEEDS = max(12, settings().max_examples // 8)  # of fewer, too few have dependences that can be missed

Labelled = list[tuple[str, Schedule]]


@pytest.fixture(scope="module")
def schedules() -> Labelled:
    return [(label, lowered(graph, plan, machine)) for label, graph, plan, machine in plans(SEEDS)]


def test_the_order_is_total_and_agrees_with_every_dependence(schedules: Labelled) -> None:
    for label, schedule in schedules:
        assert sorted(schedule.order.tolist()) == list(range(len(schedule))), label
        wrong = [(a, b) for a, b in schedule.edges() if schedule.order[a] >= schedule.order[b]]
        assert wrong == [], label


def test_every_row_runs_somewhere(schedules: Labelled) -> None:
    for label, schedule in schedules:
        for row in range(len(schedule)):
            on_processor = schedule.kind[row] in {RowKind.TASK, RowKind.FOLD}
            assert (schedule.processor[row] >= 0) == on_processor, label
            pushes = schedule.transfers(row)
            ends = {(schedule.instances[p.source].memory, schedule.instances[p.target].memory) for p in pushes}
            assert bool(pushes) == (not on_processor), label
            assert all(source != target for source, target in ends), label


def lies_in(inner: IndexSpace, outer: IndexSpace) -> bool:
    return all(part.is_empty for part in index_space.without(inner, outer))


def test_what_a_row_touches_is_in_its_accesses_and_where_it_runs(schedules: Labelled) -> None:
    for label, schedule in schedules:
        for row in range(len(schedule)):
            accesses = schedule.accesses(row)
            here = schedule.memories(row)
            assert {schedule.instances[access.instance].memory for access in accesses} <= set(here), label
            for access in accesses:
                assert schedule.instances[access.instance].rect.contains(access.rect.bounds), label
            touched = [(p.source, p.rect, False) for p in schedule.transfers(row)]
            touched += [(p.target, p.rect, True) for p in schedule.transfers(row)]
            for piece in schedule.pieces.get(row, ()):
                touched += [(part, piece.rect, False) for part in piece.parts] + [(piece.target, piece.rect, True)]
            for instance, rect, writes in touched:
                fitting = [a.rect for a in accesses if a.instance == instance and (a.writes or not writes)]
                assert lies_in(rect, index_space.union(fitting)), (
                    f"{label}: {schedule.label(row)} instance {instance}{rect}"
                )


def test_no_interleaving_of_two_runs_lets_conflicting_uses_overlap(schedules: Labelled) -> None:
    conflicts = 0
    for label, schedule in schedules:
        happens = HappensBefore(schedule)
        assert happens.races() == [], label
        conflicts += sum(1 for _ in happens.conflicts())
    assert conflicts > 1000 * len(schedules)


def without(schedule: Schedule, edge: tuple[int, int], *, carried: bool) -> Schedule:
    pairs = [pair for pair in (schedule.carries() if carried else schedule.edges()) if pair != edge]
    columns = csr(len(schedule), pairs)
    return replace(schedule, carried=columns) if carried else replace(schedule, successors=columns)


@pytest.mark.parametrize("carried", [False, True], ids=["edge", "carried edge"])
def test_a_dependence_that_is_missing_is_seen_as_a_race(carried: bool, schedules: Labelled) -> None:
    seen = 0
    for label, schedule in schedules:
        if "random" not in label or len(schedule.machine.memories) == 1 or len(schedule) > 150:
            continue
        pairs = list(schedule.carries() if carried else schedule.edges())
        chance = np.random.default_rng(len(schedule))
        for number in chance.choice(len(pairs), size=min(4, len(pairs)), replace=False):
            broken = without(schedule, pairs[number], carried=carried)
            seen += HappensBefore(broken).races() != []
        if seen > 10:
            return
    pytest.fail(f"only {seen} of the removed dependences were missed")
