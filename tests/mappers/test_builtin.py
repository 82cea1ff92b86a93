"""The built-in mappers: the table of the default one, and the plan mapper's refusal."""

from __future__ import annotations

import pytest

from maniple.mappers.default import DefaultMapper
from maniple.mappers.plan import PlanMapper
from maniple.regions.error import RequestError
from maniple.runtime.machine import Machine
from maniple.runtime.mapper import LaunchView
from maniple.runtime.mapping import map_launch

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
