"""The built-in mappers: the tables of their docstrings, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maniple.mappers.default import DefaultMapper
from maniple.mappers.load_balancing import LoadBalancingMapper
from maniple.mappers.memory_aware import MemoryAwareMapper
from maniple.mappers.plan_mapper import PlanMapper
from maniple.mappers.round_robin import RoundRobinMapper
from maniple.process.error import RequestError
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import READ
from maniple.regions.rectangle import Rect
from maniple.regions.validity import Validity
from maniple.runtime.machine.machine import Machine
from maniple.runtime.program.mapper import LaunchView, Mapper, TaskProfile, UseView
from maniple.runtime.program.mapping import map_launch
from maniple.runtime.schedule.launch import Requirement

CPU = {"cpu": "cpu"}


def view(points: int, machine: Machine, suggested: tuple[int, ...] | None = None) -> LaunchView:
    return LaunchView("conv.forward", tuple((i,) for i in range(points)), machine, suggested)


@pytest.mark.parametrize("machine", [Machine.cpu(4), Machine.cpu(2, ranks=2), Machine.cpu(1, ranks=4)])
def test_the_table_of_the_docstring(machine: Machine) -> None:
    processors = map_launch(DefaultMapper(), view(6, machine), CPU).processors
    rows = [line.split() for line in (DefaultMapper.__doc__ or "").splitlines()]
    assert ["point", *map(str, range(6))] in rows
    assert ["processor", *(f"p{processor}" for processor in processors)] in rows


@pytest.mark.parametrize("mapper", [DefaultMapper(), PlanMapper()])
def test_both_follow_a_plan(mapper: DefaultMapper | PlanMapper) -> None:
    assert map_launch(mapper, view(3, Machine.cpu(2, ranks=2), (3, 0, 2)), CPU).processors == (3, 0, 2)


def test_the_plan_mapper_places_nothing_without_a_plan() -> None:
    with pytest.raises(RequestError, match=r"mapper 'plan' cannot place conv\.forward.*use the mapper 'default'"):
        map_launch(PlanMapper(), view(3, Machine.cpu(2)), CPU)


def row(mapper: type[Mapper], name: str) -> list[str]:
    """A row of the table in a mapper's docstring."""
    lines = (line.split() for line in (mapper.__doc__ or "").splitlines())
    return [line[1:] for line in lines if line[:1] == [name]][-1]


def test_round_robin_goes_on_where_it_ended() -> None:
    mapper = RoundRobinMapper()
    found = [map_launch(mapper, view(points, Machine.cpu(2, ranks=2)), CPU).processors for points in (3, 2)]
    assert [f"p{processor}" for processors in found for processor in processors] == row(RoundRobinMapper, "processor")


def test_load_balancing_counts_what_was_measured() -> None:
    mapper = LoadBalancingMapper()
    machine = Machine.cpu(2)
    assert map_launch(mapper, view(2, machine), CPU).options.profile
    mapper.report_profiling(
        (TaskProfile("long", 0, 2, 6.0), TaskProfile("short", 0, 1, 0.5), TaskProfile("short", 1, 1, 1.5))
    )
    colors = tuple((i,) for i in range(4))
    found = map_launch(mapper, LaunchView("long", colors[:1], machine), CPU).processors
    found += map_launch(mapper, LaunchView("short", colors, machine), CPU).processors
    assert [f"p{processor}" for processor in found] == row(LoadBalancingMapper, "processor")


def test_load_balancing_keeps_points_of_one_epoch_apart() -> None:
    mapper = LoadBalancingMapper()
    machine = Machine.cpu(3)
    mapper.report_profiling((TaskProfile("long", 0, 1, 9.0), TaskProfile("epoch", 0, 1, 1.0)))
    map_launch(mapper, LaunchView("long", ((0,),), machine), CPU)
    epoch = LaunchView("epoch", ((0,), (1,)), machine, must_epoch=True)
    assert map_launch(mapper, epoch, CPU).processors == (1, 2)


def use(rects: list[Rect], held: dict[int, Rect]) -> UseView:
    region = LogicalRegion(0, "x", Rect((0,), (8,)), "float32")
    return UseView(Requirement(region, READ, tuple(rects)), Validity.of_holdings(held))


def test_memory_aware_sends_work_to_data() -> None:
    rects = [Rect((0,), (1,)), Rect((4,), (4,)), Rect((4,), (4,))]
    looked = use(rects, {1: Rect((0,), (1,))})
    launch = LaunchView("look", ((0,), (1,), (2,)), Machine.cpu(1, ranks=2), uses=(looked,))
    machine = launch.machine
    memories = [machine.memory_of(p) for p in map_launch(MemoryAwareMapper(), launch, CPU).processors]
    assert [str(memory) for memory in memories] == ["1", "0", "0"] == row(MemoryAwareMapper, "memory")


def test_memory_aware_goes_elsewhere_when_a_memory_is_full() -> None:
    machine = Machine.cpu(1, ranks=2)
    small = replace(machine.memories[0], capacity_bytes=16)
    machine = replace(machine, memories=(small, machine.memories[1]))
    whole = Rect((0,), (8,))
    looked = use([whole, whole], {0: Rect((0,), (2,))})
    launch = LaunchView("look", ((0,), (1,)), machine, uses=(looked,))
    assert map_launch(MemoryAwareMapper(), launch, CPU).processors == (1, 1)


@pytest.mark.parametrize("make", [RoundRobinMapper, LoadBalancingMapper, MemoryAwareMapper])
def test_all_of_them_follow_a_plan(make: type[Mapper]) -> None:
    assert map_launch(make(), view(3, Machine.cpu(2, ranks=2), (3, 0, 2)), CPU).processors == (3, 0, 2)
