"""Fits: whether a step fits in the memories of a machine, what takes the room, and the largest batch that fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from maniple.process.error import RequestError
from maniple.strategies.search.memory_fit import allocated_beyond, needed_bytes, peak_operator
from maniple.strategies.simulation.kind import MemoryKind, peak_kinds
from maniple.strategies.simulation.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Callable

    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

MOST_SAMPLES = 1 << 20
"""No larger batch is tried."""
FARTHEST = 64
"""How many times the largest batch known to fit is the next one that is tried, at most."""


@final
@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What a step takes of one memory.

    Args:
        memory: which.
        capacity_bytes: what it holds.
        needed_bytes: what the runtime allocates for the step; where that takes long to find out, what it allocates at
            most.
        peak_bytes: the most that lives there at once: what `kinds` adds up to.
        kinds: the bytes of each kind that live there then; `strategies/simulation/kind.py` says what counts as which.
        peak_operator: the operator whose task or movement begins then.
    """

    memory: int
    capacity_bytes: int
    needed_bytes: int
    peak_bytes: int
    kinds: tuple[tuple[str, int], ...]
    peak_operator: str

    @property
    def fits(self) -> bool:
        """Whether it holds what is needed."""
        return self.needed_bytes <= self.capacity_bytes

    def to_json(self) -> dict[str, object]:
        """The use as plain data."""
        return {
            "memory": self.memory,
            "capacity_bytes": self.capacity_bytes,
            "needed_bytes": self.needed_bytes,
            "fits": self.fits,
            "peak_bytes": self.peak_bytes,
            "kinds": dict(self.kinds),
            "peak_operator": self.peak_operator,
        }


@final
@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a plan's step fits in a machine.

    Args:
        batch: samples of the step.
        step_s: its predicted seconds.
        memories: what it takes of each memory.
    """

    batch: int
    step_s: float
    memories: tuple[MemoryUse, ...]

    @property
    def fits(self) -> bool:
        """Whether every memory holds what it must."""
        return all(memory.fits for memory in self.memories)


def fit(graph: Graph, machine: Machine, plan: Plan, optimizer: AbstractOptimizer | None = None) -> Fit:
    """Simulate a step and see what it takes.

    Args:
        graph: the graph; it must have a loss.
        machine: the machine, which need not be at hand.
        plan: a plan for both.
        optimizer: what updates the weights; None: descent with momentum.

    Raises:
        RequestError: the plan is not one for the graph and machine.
    """
    simulation = Simulation(graph, machine, plan, optimizer=optimizer)
    needed = simulation.allocated_bytes() or needed_bytes(simulation)
    uses = []
    for memory, size in zip(machine.memories, needed, strict=True):
        kinds = peak_kinds(simulation, memory.id)
        told = tuple((kind.value, kinds[kind]) for kind in MemoryKind)
        operator = peak_operator(simulation, memory.id)
        uses.append(MemoryUse(memory.id, memory.capacity_bytes, size, sum(kinds.values()), told, operator))
    return Fit(graph.batch, simulation.makespan_ns / 1e9, tuple(uses))


@final
@dataclass(frozen=True, slots=True)
class LargestBatch:
    """The largest batch that fits.

    Args:
        samples: of a step; None where none fits, or none is known.
        note: what else must be said of it, or nothing.
    """

    samples: int | None
    note: str = ""


def largest_batch(
    model: Callable[[int], Graph],
    machine: Machine,
    plan: Callable[[Graph], Plan],
    known: Fit,
    optimizer: AbstractOptimizer | None = None,
) -> LargestBatch:
    """Search the largest batch that fits.

    Args:
        model: makes the graph for so many samples.
        machine: the machine.
        plan: makes the plan for a graph.
        known: of one batch, from which on the search goes.
        optimizer: what updates the weights; None: descent with momentum.
    """
    refused: list[str] = []

    def beyond(samples: int) -> int | None:
        try:
            graph = model(samples)
        except RequestError as error:
            refused.append(f"the model cannot be made for {samples} samples: {error}")
            raise
        try:
            return max(allocated_beyond(Simulation(graph, machine, plan(graph), optimizer=optimizer)))
        except RequestError as error:
            refused.append(f"the plan is none for {samples} samples: {error}")
            return None

    first = max(memory.needed_bytes - memory.capacity_bytes for memory in known.memories)
    try:
        found = largest(beyond, known.batch, first)
    except RequestError:
        return LargestBatch(known.batch if known.fits else None, f"other batches are not known to fit: {refused[-1]}")
    if found == MOST_SAMPLES:
        return LargestBatch(found, "larger ones were not tried")
    return LargestBatch(found, refused[-1] if found is None and refused else "")


def largest(beyond: Callable[[int], int | None], known: int, first: int) -> int | None:
    """The largest number of samples, at most `MOST_SAMPLES`, that fits; None where none does.

    What a step needs grows about evenly with its batch, so a line through the two nearest batches says where to look
    next; every third time the middle is taken instead, lest a step in the line hold the search up.

        fits at 64, 10 GB free; not at 128, 6 GB short      next 104      fits, not 105      104

    Args:
        beyond: the bytes beyond what a memory holds, 0 or less where all fits; None for a batch that is too small to be
            cut as the plan says.
        known: a batch ...
        first: ... and its bytes beyond.
    """
    best, low, high = (known, known, None) if first <= 0 else (None, 0, known)
    free, short = (first, 0) if first <= 0 else (None, first)
    before: tuple[int, int] | None = None
    turn = 0
    while low < MOST_SAMPLES and (high is None or high - low > 1):
        turn += 1
        if high is None:
            guess = min(_farther(low, free or 0, before), MOST_SAMPLES)
        elif free is None or turn % 3 == 0:
            guess = (low + high) // 2
        else:
            guess = min(max(low + (high - low) * -free // (short - free), low + 1), high - 1)
        found = beyond(guess)
        if found is not None and found > 0:
            high, short = guess, found
            continue
        before = None if free is None else (low, free)
        low, free = guess, found
        best = best if found is None else guess
    return best


def _farther(low: int, free: int, before: tuple[int, int] | None) -> int:
    """A batch to try beyond the largest that is known to fit: where a line through the last two says, and one more."""
    if before is None or free <= before[1]:
        return 2 * low
    reached = low + (low - before[0]) * -free // (free - before[1])
    return min(max(reached, low) + 1, FARTHEST * low)
