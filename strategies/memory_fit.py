"""Memory fit: whether what a step allocates fits, and what takes the room where it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.regions.error import RequestError

if TYPE_CHECKING:
    from maniple.operators.plan import Plan
    from maniple.strategies.simulation.simulation import Simulation

__all__: list[str] = []


def excess(simulation: Simulation) -> tuple[int, int]:
    """The most bytes that a memory would hold beyond its capacity (below 0 where all fits), and which memory."""
    memories = simulation.machine.memories
    return max((int(used) - m.capacity_bytes, m.id) for used, m in zip(simulation.memory_bytes, memories, strict=True))


def refuse_unfit(plan: Plan, simulation: Simulation) -> None:
    """Refuse a plan whose instances do not fit.

    Args:
        plan: the plan.
        simulation: of it.

    Raises:
        RequestError: says the memory that the plan needs, and which operator takes the most of it.
    """
    beyond, memory = excess(simulation)
    if beyond > 0:
        held = simulation.machine.memories[memory].capacity_bytes
        operator, size = largest(simulation, memory)
        raise RequestError(
            f"the plan of {plan.strategy} does not fit in memory: it needs {held + beyond} bytes in memory {memory}, "
            f"which holds {held}; operator {operator} stands in the way with {size} bytes there; try strategy soap, "
            "use a smaller batch, or a machine with more memory"
        )


def largest(simulation: Simulation, memory: int) -> tuple[str, int]:
    """The operator whose values, weights and their gradients take the most of a memory, and how many bytes."""
    graph = simulation.graph
    owners = {tensor.name: graph.producer(tensor.id) for tensor in graph.tensors}
    for node in reversed(graph.nodes):
        for operand in node.operands:
            if operand is not None and graph.producer(operand) is None:
                owners[graph.tensors[operand].name] = node
    sizes: dict[str, int] = {}
    for region, size in simulation.held_in(memory):
        parts = region.split(".")
        names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        owner = next((owners[name] for name in names if name in owners), None)
        name = parts[0] if owner is None else owner.name
        sizes[name] = sizes.get(name, 0) + size
    return max(sizes.items(), key=lambda item: (item[1], item[0]))
