"""Sharding: homes of weights by the stages of ZeRO (Rajbhandari et al., SC 2020), as what a plan says of each weight.

A weight of two blocks that p0 and p1 both read whole, under an optimizer with state:

    stage   home         copy   sums   memory 0 holds from step to step, and while it is used
    0       whole x2     kept   use    value, state                  gradient whole
    1       half, half   kept   use    value, half of the state      gradient whole
    2       half, half   kept   home   value, half of the state      gradient of a micro-batch whole, half of the sum
    3       half, half   pass   home   half of value and state       the same, and the value whole, twice a step

Where gradients are not accumulated over micro-batches stages 1 and 2 are one: an update comes as soon as its gradient.
A weight of which each memory reads what one processor there has at home stays as it is in any stage: nothing is twice.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from maniple.operators.plan.weight_home import home_among, users_of
from maniple.operators.rules.bounds import blocks_of
from maniple.operators.rules.configuration import WeightPlan
from maniple.operators.rules.task_placement import memory_by_processor
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import TensorInfo
    from maniple.operators.plan.weight_home import Users
    from maniple.operators.rules.bounds import Bounds, Column, Table
    from maniple.operators.rules.configuration import OperatorPlan
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

Box = tuple[int, ...]
"""By axis where it begins and ends."""
STAGES = (0, 1, 2, 3)
SUMMED, PASSING = 2, 3
"""The stages from which on gradients add up at home, and values are whole only while they are used."""


def sharded(
    graph: Graph,
    operators: Mapping[str, OperatorPlan],
    weights: Mapping[str, WeightPlan],
    machine: Machine,
    stage: int,
) -> dict[str, WeightPlan]:
    """The homes of all weights in a stage of ZeRO; buffers stay where they are.

    Args:
        graph: the graph.
        operators: the configuration of every operator by name.
        weights: the homes as they are.
        machine: the machine.
        stage: 0 to 3.

    Raises:
        RequestError: no such stage, or a weight that cannot be whole wherever it is used.
    """
    if stage not in STAGES:
        raise RequestError(f"zero: expected a stage of {', '.join(map(str, STAGES))}, got {stage!r}")
    memory_of, found = memory_by_processor(machine), dict(weights)
    readers: dict[int, list[Users]] = {}
    for node in graph.nodes:
        for place, operand in enumerate(node.operands):
            if operand is not None and graph.tensors[operand].kind == "parameter":
                readers.setdefault(operand, []).append(users_of(graph.bound(node), place, operators[node.name]))
    for tensor in graph.parameters:
        users = [(tiles, by) for tiles, by in readers.get(tensor.id, ()) if len(tiles)]
        if users:
            found[tensor.name] = _sharded(tensor, users, memory_of, stage)
    return found


def _sharded(tensor: TensorInfo, users: Sequence[Users], memory_of: Column, stage: int) -> WeightPlan:
    spread = home_among(tensor.shape, users, 0)
    held = _by_memory(blocks_of(tensor.shape, spread.degrees), np.asarray(spread.processors)[:, None], memory_of)
    read: dict[int, set[Box]] = {}
    for tiles, by in users:
        for memory, blocks in _by_memory(tiles, by, memory_of).items():
            read.setdefault(memory, set()).update(blocks)
    if all(_covers(held.get(memory, set()), blocks) for memory, blocks in read.items()):
        return spread
    if stage == 0:
        return _replicated(tensor, users, memory_of)
    return replace(spread, sums="home" if stage >= SUMMED else "use", copy="pass" if stage >= PASSING else "kept")


def _by_memory(tiles: Bounds, by: Table, memory_of: Column) -> dict[int, set[Box]]:
    """The boxes that the processors of each memory use."""
    found: dict[int, set[Box]] = {}
    for tile, processors in zip(tiles.reshape(len(tiles), -1).tolist(), by, strict=True):
        for memory in memory_of[processors].tolist():
            found.setdefault(memory, set()).add(tuple(tile))
    return found


def _covers(held: set[Box], used: set[Box]) -> bool:
    """Whether disjoint boxes hold all of some others."""

    def within(box: Box, other: Box) -> int:
        sides = zip(box[::2], box[1::2], other[::2], other[1::2], strict=True)
        return prod(max(0, min(high, end) - max(low, start)) for low, high, start, end in sides)

    return all(sum(within(box, each) for each in held) == within(box, box) for box in used)


def _replicated(tensor: TensorInfo, users: Sequence[Users], memory_of: Column) -> WeightPlan:
    """The home in which each memory that uses a part holds it, as replicas of blocks."""
    where: dict[Box, dict[int, int]] = {}
    for tiles, by in users:
        for tile, users_of_it in zip(tiles.reshape(len(tiles), -1).tolist(), by, strict=True):
            for processor in users_of_it.tolist():
                where.setdefault(tuple(tile), {}).setdefault(int(memory_of[processor]), processor)
    axes = range(len(tensor.shape))
    degrees = tuple(len({tile[2 * axis] for tile in where}) for axis in axes)
    blocks = [tuple(block) for block in blocks_of(tensor.shape, degrees).reshape(prod(degrees), -1).tolist()]
    counts = {len(owners) for owners in where.values()}
    if set(blocks) != set(where) or len(counts) > 1:
        raise RequestError(
            f"zero=0: {tensor.name}: expected parts that do not overlap, each used by as many memories, to be whole "
            "wherever it is used; take stage 1, 2 or 3, which spread it"
        )
    processors = [owner for block in blocks for _, owner in sorted(where[block].items())]
    return WeightPlan(degrees, tuple(processors), counts.pop())
