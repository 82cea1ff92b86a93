"""The analytic cost model gives the numbers by which schedules are ordered."""

from __future__ import annotations

import pytest

from maniple.models import model
from maniple.operators.lowering.expansion import Expansion
from maniple.operators.lowering.weight import weights
from maniple.operators.training.optimizer import SGD
from maniple.runtime.machine.machine import Machine
from maniple.runtime.program.region_table import RegionTable
from maniple.runtime.schedule.roofline import task_ns
from maniple.strategies.cost_model.analytic import Analytic
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.named.random_plan import RandomPlan


@pytest.mark.parametrize("name", ["cpu:2x2", "p100x6"])
@pytest.mark.parametrize("seed", range(3))
def test_launches_cost_what_their_tasks_cost(name: str, seed: int) -> None:
    graph, machine = model("digits_cnn", batch=12), Machine.preset(name)
    plan = RandomPlan().plan(Problem(graph, machine, seed=seed))
    table, optimizer = RegionTable(), SGD(lr=0.1, momentum=0.9)
    held = weights(graph, plan, machine, optimizer, table)
    costs = Analytic(machine)
    for launch in Expansion(graph, plan, machine, held, table).training_step(optimizer).launches:
        expected = [task_ns(launch, point, machine) for point in range(len(launch.points))]
        assert costs.task_ns(launch).tolist() == expected
        assert min(expected) >= 1e9 * machine.processors[0].launch_s
