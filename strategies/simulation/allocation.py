"""Allocation: what the runtime will allocate in each memory for a step, by the lowering and the plan that it makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.operators.lowering.expansion import Expansion
from maniple.operators.lowering.step_program import FragmentCache, lower
from maniple.operators.lowering.weight import weights
from maniple.runtime.lanes.binding import Storage
from maniple.runtime.program.region_table import RegionTable
from maniple.runtime.schedule.lane import Layout
from maniple.runtime.storage.memory import Memory

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan
    from maniple.operators.training.optimizer import SGD
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []


def allocated_bytes(graph: Graph, machine: Machine, plan: Plan, optimizer: SGD) -> tuple[int, ...]:
    """Give the bytes of each memory that a training step takes, where instances never alive together take turns."""
    table = RegionTable()
    expansion = Expansion(graph, plan, machine, weights(graph, plan, machine, optimizer, table), table)
    program = expansion.training_step(optimizer)
    schedule = lower(program, FragmentCache(machine))
    devices = any(processor.kind == "gpu" for processor in machine.processors)
    found: dict[int, int] = {}
    for rank in sorted({memory.rank for memory in machine.memories}):
        here = machine.memories_of(rank)
        names = {machine.hosts[machine.memories[memory].host].name for memory in here}  # nodes of one host share memory
        near = () if devices else tuple(m.id for m in machine.memories if machine.hosts[m.host].name in names)
        storage = Storage(schedule, {memory: Memory(memory) for memory in here}, program.homes, near)
        storage.plan(Layout(schedule, here, near, storage.temporary).lanes().lifetimes)
        found.update(storage.needs())
    return tuple(size for _, size in sorted(found.items()))
