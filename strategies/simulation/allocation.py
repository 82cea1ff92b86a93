"""Allocation: what the runtime will allocate in each memory for a step, by the lowering and the plan that it makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.operators.lowering.expansion import training_step
from maniple.operators.lowering.step_program import FragmentCache, lower
from maniple.runtime.schedule.machine_memory import planned_bytes

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []


def allocated_bytes(graph: Graph, machine: Machine, plan: Plan, optimizer: AbstractOptimizer) -> tuple[int, ...]:
    """Give the bytes of each memory that a training step takes, where instances never alive together take turns."""
    program = training_step(graph, plan, machine, optimizer)
    return planned_bytes(lower(program, FragmentCache(machine)), program.lasting)
