"""Kinds of memory: what the bytes that live in a memory are for. This module alone says what counts as which.

    ===========  =======================================================================================
    kind         what counts
    ===========  =======================================================================================
    parameters   parameters and buffers: every copy that a memory keeps from step to step, and working copies
    gradients    of parameters: what the tasks of a memory contribute, and the sum where it is read
    optimizer    the optimizer's state
    activations  inputs, results of operators, and the gradients of all of these, as far as tasks of the memory
                 write them
    saved        what operators keep for the way back beside operands and results, as far as tasks of the memory
                 write it: indices of pools, statistics of norms, gates of recurrent layers
    exchange     the same as far as no task of the memory writes it: tiles that came from other memories, and
                 sums of contributions; and of sums, gradients' too, what is on its way to be added
    scratch      the clock of random operators, the numbers of updates, and what instances leave free as they begin at
                 cache lines
    ===========  =======================================================================================

What bodies allocate while they run is no part of it: that is measured when a step is loaded
(`runtime/storage/scratch.py`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from maniple.operators.rules.task_placement import memory_by_processor
from maniple.regions.columns.boxes import HIGH, LOW
from maniple.regions.columns.validity import ACCUMULATE, GRADIENT, READ, REDUCE
from maniple.strategies.simulation.launch_table import REQUIREMENT_BITS
from maniple.strategies.simulation.region_cache import contributions, privilege

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.regions.columns.boxes import Boxes
    from maniple.strategies.simulation.plan_free_step import RegionKey
    from maniple.strategies.simulation.region_cache import Use
    from maniple.strategies.simulation.simulation import Simulation

__all__: list[str] = []

Here = np.ndarray[tuple[int], np.dtype[np.bool_]]
REQUIREMENTS = (1 << REQUIREMENT_BITS) - 1
"""What of a use's place is the number of its requirement."""


class MemoryKind(StrEnum):
    """What bytes of a memory are for, in the order in which tables have it."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    SAVED = "saved"
    EXCHANGE = "exchange"
    SCRATCH = "scratch"


def region_kind(key: RegionKey, graph: Graph) -> MemoryKind:
    """Say what a region is for, apart from tiles that came from elsewhere.

    Args:
        key: the region.
        graph: the graph of the step.
    """
    what, number, tensor = key
    if what in {"clock", "hyper", "squares"}:
        return MemoryKind.SCRATCH
    if what == "saved":
        return MemoryKind.SAVED
    if what == "state":
        return MemoryKind.OPTIMIZER
    if what == "copy":
        return MemoryKind.PARAMETERS
    if number < 0 and what in {"value", "gradient"} and graph.tensors[tensor].lasting:
        return MemoryKind.PARAMETERS if what == "value" else MemoryKind.GRADIENTS
    return MemoryKind.ACTIVATIONS


def peak_kinds(simulation: Simulation, memory: int) -> dict[MemoryKind, int]:
    """Give the bytes of each kind that live in a memory when it is fullest; together they are the simulation's peak.

    Args:
        simulation: of a step.
        memory: which memory.
    """
    launches, regions = simulation.parts()
    memory_of = memory_by_processor(simulation.machine)
    keys, itemsizes = list(regions), simulation.itemsizes()
    found = dict.fromkeys(MemoryKind, 0)
    for number, size in simulation.liveness().at_peak(memory)[1]:
        rows, places = regions[keys[number]]
        kind, stored = region_kind(keys[number], simulation.graph), int(rows.memory_bytes[memory])
        own = stored
        if kind in {MemoryKind.ACTIVATIONS, MemoryKind.SAVED, MemoryKind.GRADIENTS}:
            uses = [launches[place >> REQUIREMENT_BITS].uses[place & REQUIREMENTS][1] for place in places]
            sums = kind is MemoryKind.GRADIENTS
            own = itemsizes[number] * _own_elements(uses, memory_of == memory, sums=sums)
        found[kind] += own
        found[MemoryKind.EXCHANGE] += stored - own
        found[MemoryKind.SCRATCH] += size - stored
    return found


def _own_elements(uses: Sequence[Use], here: Here, *, sums: bool) -> int:
    """The elements of a region in a memory that are its own.

    Args:
        uses: every use of the region.
        here: by processor, whether it has the memory.
        sums: whether what tasks read counts too, and not only what they contribute and write.
    """
    alone = sum(use.shape.access == GRADIENT for use in uses) == 1
    by, added = contributions(uses, alone=alone)
    contributed = sum(_volume(box[None]) for box in added[here[by]])
    kept: list[Boxes] = []
    for use in uses:
        boxes = use.shape.boxes[here[use.processors]]
        access = privilege(use, alone=alone)
        if access not in {REDUCE, ACCUMULATE} and (sums or access != READ):
            kept.append(boxes)
    return contributed + (_volume(np.concatenate(kept)) if kept else 0)


def _volume(boxes: Boxes) -> int:
    """The elements of the smallest box that holds some."""
    if not len(boxes):
        return 0
    return int(np.prod(boxes[:, HIGH:].max(axis=0) - boxes[:, LOW:HIGH].min(axis=0)))
