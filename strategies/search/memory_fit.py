"""Memory fit: whether what a step needs of the memories fits, and what takes the room where it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maniple.process.error import RequestError
from maniple.runtime.analysis.capacity import AMPLE
from maniple.runtime.schedule.machine_memory import neighbours
from maniple.runtime.schedule.memory.memory_plan import ALIGNMENT
from maniple.strategies.cost_model.scratch import ScratchModel
from maniple.strategies.simulation.named_row import COPY_ENGINE
from maniple.strategies.timing.tables import DURATION, END

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan
    from maniple.strategies.simulation.simulation import Simulation

__all__: list[str] = []
ALONE, MOVED, TOGETHER = 1 / 16, 3 / 16, 1 / 2
"""By what share the runtime's plan of what takes turns may be larger than what lives at once: where a memory has one
processor, where copy engines move its tiles besides, and where it has several processors;
`tests/strategies/simulation/test_liveness.py` holds random plans to it."""


def beyond(simulation: Simulation) -> tuple[int, ...]:
    """The bytes that a step would hold beyond the capacity of each memory; all are 0 or less where it fits.

    All instances of a step together are quickly counted, and no step needs more. Only where they are too many is it
    found out what lives at once.
    """
    found = _counted_beyond(simulation)
    return found if max(found) <= 0 else _less_capacity(simulation, needed_bytes(simulation))


def allocated_beyond(simulation: Simulation) -> tuple[int, ...]:
    """The same by what the step will take, where that is to be had; it takes as long as lowering the plan.

    What bodies take is in it where the costs know that, and is not asked for where memories have `AMPLE` room.
    """
    found, memories = _counted_beyond(simulation), simulation.machine.memories
    ample = all(AMPLE * (more + m.capacity_bytes) <= m.capacity_bytes for more, m in zip(found, memories, strict=True))
    fits = ample if isinstance(simulation.costs, ScratchModel) else max(found) <= 0
    allocated = None if fits else simulation.allocated_bytes()
    return beyond(simulation) if allocated is None else _less_capacity(simulation, allocated)


def excess(simulation: Simulation) -> tuple[int, int]:
    """The most bytes that a memory would hold beyond its capacity (0 or less where all fits), and which memory."""
    return max((size, memory) for memory, size in enumerate(beyond(simulation)))


def needed_bytes(simulation: Simulation) -> tuple[int, ...]:
    """What a step needs of each memory at most: what lives there at once, and what the runtime's plan may add to it."""
    allocated = None if simulation.flow is None else simulation.allocated_bytes()
    if allocated is not None:  # versions and mini-batches under way outlive runs: the runtime says how much they take
        return allocated
    liveness, machine = simulation.liveness(), simulation.machine
    count = len(machine.memories)
    lasting = liveness.outlasting(count)
    shares = np.full(count, ALONE)
    for group in neighbours(machine):
        for memory in group:
            one = MOVED if len(group) == 1 < count else ALONE
            shares[memory] = one if len(machine.processors_of(memory)) == 1 else TOGETHER
    within = np.ceil((liveness.peaks(count) - lasting) * (1.0 + shares)).astype(np.int64)
    return tuple((lasting + within).tolist())


def refuse_unfit(plan: Plan, simulation: Simulation, needed: Sequence[int]) -> None:
    """Refuse a plan that does not fit.

    Args:
        plan: the plan.
        simulation: of it.
        needed: what it needs of each memory.

    Raises:
        RequestError: says the memory that the plan needs, and which operator takes the most of it.
    """
    more, memory = max((size, memory) for memory, size in enumerate(_less_capacity(simulation, needed)))
    if more > 0:
        held = simulation.machine.memories[memory].capacity_bytes
        operator, size = largest(simulation, memory)
        raise RequestError(
            f"the plan of {plan.strategy} does not fit in memory: it needs {held + more} bytes in memory {memory}, "
            f"which holds {held}; operator {operator} stands in the way with {size} bytes there; try strategy soap, "
            "use a smaller batch, or a machine with more memory"
        )


def largest(simulation: Simulation, memory: int) -> tuple[str, int]:
    """The operator whose values, weights and their gradients take the most of a memory when it is fullest, in bytes."""
    owners = _owners(simulation.graph)
    sizes: dict[str, int] = {}
    regions = simulation.region_names()
    for number, size in simulation.liveness().at_peak(memory)[1]:
        name = _owner(owners, regions[number])
        sizes[name] = sizes.get(name, 0) + size
    return max(sizes.items(), key=lambda item: (item[1], item[0]))


def peak_operator(simulation: Simulation, memory: int) -> str:
    """The operator that sets the peak of a memory: of what begins there as the peak is first reached, the first row.

    What must be there from the beginning of a step on counts as of the first row that has to do with the memory.
    """
    rows, machine = simulation.ledger.alive, simulation.machine
    when, timed = simulation.liveness().at_peak(memory)[0], (simulation.flow or simulation.ledger).rows
    begins = timed[rows, END] - timed[rows, DURATION]
    rank = machine.memories[memory].rank
    names = {machine.processors[number].name for number in machine.processors_of(memory)}
    for row in simulation.name_rows(rows[begins == when].tolist()):
        if any(where == rank and lane in names | {COPY_ENGINE} for where, lane in row.lanes):
            return _owner(_owners(simulation.graph), row.name.rpartition(" ")[2])
    return largest(simulation, memory)[0]


def _owners(graph: Graph) -> dict[str, str]:
    """The operator that each tensor belongs to: what makes it, or, of what nothing makes, what first reads it."""
    found = {node.name: node.name for node in reversed(graph.nodes)}
    for tensor in graph.tensors:
        producer = graph.producer(tensor.id)
        if producer is not None:
            found[tensor.name] = producer.name
    for node in reversed(graph.nodes):
        for operand in node.operands:
            if operand is not None and graph.producer(operand) is None:
                found[graph.tensors[operand].name] = node.name
    return found


def _owner(owners: Mapping[str, str], name: str) -> str:
    """The operator that a region or a row belongs to, by the longest beginning of its name that is known."""
    parts = name.partition("[")[0].split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((owners[name] for name in names if name in owners), parts[0])


def _counted_beyond(simulation: Simulation) -> tuple[int, ...]:
    # A row makes at most one instance, and so does a region, of which there are fewer; each may begin a line later.
    counted = simulation.memory_bytes + 2 * ALIGNMENT * len(simulation.ledger.sequence)
    return _less_capacity(simulation, counted.tolist())


def _less_capacity(simulation: Simulation, needed: Sequence[int]) -> tuple[int, ...]:
    memories = simulation.machine.memories
    return tuple(used - memory.capacity_bytes for used, memory in zip(needed, memories, strict=True))
