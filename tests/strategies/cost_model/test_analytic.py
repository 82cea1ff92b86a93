"""The analytic cost model gives the numbers by which schedules are ordered."""

from __future__ import annotations

import pytest
from naive_roofline import task_ns

from maniple.models import model
from maniple.operators.lowering.expansion import training_step
from maniple.operators.training.descent import SGD
from maniple.runtime.machine.machine import Machine
from maniple.strategies.cost_model.analytic import Analytic
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.named.random_plan import RandomPlan


@pytest.mark.parametrize("name", ["cpu:2x2", "p100x6"])
@pytest.mark.parametrize("seed", range(3))
def test_launches_cost_what_their_tasks_cost(name: str, seed: int) -> None:
    graph, machine = model("digits_cnn", batch=12), Machine.preset(name)
    plan = RandomPlan().plan(Problem(graph, machine, seed=seed))
    costs = Analytic(machine)
    for launch in training_step(graph, plan, machine, SGD(lr=0.1, momentum=0.9)).launches:
        expected = [task_ns(launch, point, machine) for point in range(len(launch.points))]
        assert costs.task_ns(launch).tolist() == expected
        assert min(expected) >= 1e9 * machine.processors[0].launch_s
