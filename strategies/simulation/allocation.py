"""Allocation: what a step will take of each memory, by the lowering and the plan that the runtime makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.operators.lowering.expansion import training_step
from maniple.operators.lowering.step_program import FragmentCache, lower
from maniple.runtime.schedule.machine_memory import planned_bytes
from maniple.strategies.cost_model.scratch import scratch_bytes

if TYPE_CHECKING:
    from collections.abc import Collection

    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.schedule import Schedule
    from maniple.strategies.cost_model.cost_model import CostModel

__all__: list[str] = []


def allocated_bytes(
    graph: Graph, machine: Machine, plan: Plan, optimizer: AbstractOptimizer, costs: CostModel | None = None
) -> tuple[int, ...]:
    """Give the bytes of each memory that a training step takes, where instances never alive together take turns.

    What bodies take beside them is in it as far as the costs know that.
    """
    program = training_step(graph, plan, machine, optimizer)
    return taken_bytes(lower(program, FragmentCache(machine)), program.lasting, costs)


def taken_bytes(schedule: Schedule, lasting: Collection[int], costs: CostModel | None) -> tuple[int, ...]:
    """Give the same of a schedule.

    Args:
        schedule: the step.
        lasting: ids of the regions that outlive it.
        costs: what is known of its tasks.
    """
    pairs = zip(planned_bytes(schedule, lasting), scratch_bytes(schedule, costs), strict=True)
    return tuple(instances + scratch for instances, scratch in pairs)
