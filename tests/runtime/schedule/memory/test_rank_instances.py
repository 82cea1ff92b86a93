"""Which instances of a small schedule a rank holds, which outlive it, and what they take."""

from __future__ import annotations

import pytest

from maniple.operators.lowering.step_program import FragmentCache, Program, lower
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import READ, READ_WRITE, reduce
from maniple.regions.rectangle import Rect
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.lane import Layout
from maniple.runtime.schedule.launch import Launch, Point, Requirement
from maniple.runtime.schedule.memory.memory_plan import ALIGNMENT
from maniple.runtime.schedule.memory.rank_instances import RankInstances
from maniple.runtime.schedule.schedule import InstanceKind, Schedule

WHOLE = Rect((0,), (40,))
HALVES = (Rect((0,), (20,)), Rect((20,), (40,)))
STATE = LogicalRegion(0, "state", WHOLE, "float64")
SUM = LogicalRegion(1, "sum", WHOLE, "float32")


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    """Two ranks add to a sum, and each adds half of it to its half of a state."""
    points = (Point((0,), 0), Point((1,), 1))
    launches = (
        Launch("add", points, (Requirement(SUM, reduce("+"), (WHOLE, WHOLE)),), None),
        Launch("update", points, (Requirement(STATE, READ_WRITE, HALVES), Requirement(SUM, READ, HALVES)), None),
    )
    homes = {STATE.id: ((0, HALVES[:1]), (1, HALVES[1:]))}
    return lower(Program(launches, homes), FragmentCache(Machine.cpu(1, ranks=2)))


@pytest.mark.parametrize("memory", [0, 1])
def test_of_its_own_memory_a_rank_holds_all_and_what_is_home_there_lasts(schedule: Schedule, memory: int) -> None:
    held = RankInstances(schedule, (memory,), {STATE.id})
    own = [number for number, instance in enumerate(schedule.instances) if instance.memory == memory]
    assert sorted((*held.lasting, *held.temporary)) == own
    (state,) = held.lasting
    found = schedule.instances[state]
    assert (found.kind, found.rect, held.size(state)) == (InstanceKind.MAIN, HALVES[memory], 20 * 8)
    assert {schedule.regions[schedule.instances[number].region] for number in held.temporary} == {SUM}


def test_a_run_takes_what_lasts_and_the_turns_of_the_rest(schedule: Schedule) -> None:
    memories = (1, 0)
    held = RankInstances(schedule, memories, {STATE.id})
    plans = held.plan(Layout(schedule, memories, memories, held.temporary).lanes().lifetimes)
    assert list(plans) == [0, 1]
    for memory, plan in plans.items():
        own = {number for number in held.temporary if schedule.instances[number].memory == memory}
        assert set(plan.offsets) == own
        assert plan.unshared == sum(-(-held.size(number) // ALIGNMENT) * ALIGNMENT for number in own)
    assert held.needs(plans) == {memory: plan.size + 20 * 8 for memory, plan in plans.items()}


def test_without_a_region_that_outlives_it_nothing_lasts(schedule: Schedule) -> None:
    held = RankInstances(schedule, (0,), ())
    assert held.lasting == ()
    assert held.temporary
