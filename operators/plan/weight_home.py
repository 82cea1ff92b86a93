"""The home of a weight: which processors hold and update which block of it. This module alone says where that is.

By default it is where the weight is used, if one processor uses each of its tiles; else it is spread evenly:

linear, weight (n=10, k=64)      the weight's tiles used by     home
n=2 on p0 p1 (parameter split)   [0:5] p0, [5:10] p1            degrees (2, 1) on p0 p1
b=2 on p0 p1 (sample split)      whole p0, whole p1             degrees (1, 2) on p0 p1
b=2 n=2 on p0 p1 p2 p3 (both)    [0:5] p0 p2, [5:10] p1 p3      degrees (2, 2) on p0 p2 p1 p3

Four parts of 10 rows are of 3, 3, 2 and 2, so the second would lie in both tiles: every tile is cut along k instead. Of
12 rows no part would, and the home would be (4, 1).

A weight that its optimizer updates whole lives whole with one of those who use it, the one whose turn it is: those with
the most work come first, so matrices of 4d x d, 4d x d, 3d x d and d x d that p0 and p1 use take p0 p1 p1 p0.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, product
from math import prod
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.rules.bounds import blocks_of, row_major
from maniple.operators.rules.configuration import OperatorPlan, WeightPlan
from maniple.operators.rules.task_placement import keep_replicas, processors_by_point
from maniple.operators.rules.tile import split_range
from maniple.process.error import RequestError, nearest
from maniple.runtime.schedule.launch_columns import Points

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import Node, TensorInfo
    from maniple.operators.rules.bound_rule import BoundRule
    from maniple.operators.rules.bounds import Bounds, Column, Table
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

Operators = tuple[tuple[str, OperatorPlan], ...]
Users = tuple["Bounds", "Table"]
"""Tiles of a weight, and by tile the processors that use it."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class WeightHome:
    """A home, task by task of the weight's update.

    Args:
        plan: the home as a plan has it.
        processors: where each task runs.
        colors: the number of the block that it updates, row-major; the same for replicas, which are next to each other.
        memories: where the block lives.
        blocks: the block.
    """

    plan: WeightPlan
    processors: Column
    colors: Column
    memories: Column
    blocks: Bounds

    @property
    def extents(self) -> tuple[Column, ...]:
        """By dimension of the weight how much of it each block has."""
        return tuple((self.blocks[:, :, 1] - self.blocks[:, :, 0]).T)

    def points(self) -> Points:
        """The points of a launch whose tasks run where the weight lives."""
        return Points(row_major(self.plan.degrees)[self.colors], self.colors, self.processors)


def planned_home(shape: Sequence[int], plan: WeightPlan, memory_of: Column) -> WeightHome:
    """The home that a plan names; a block without elements has none.

    Args:
        shape: the weight's.
        plan: the home.
        memory_of: the memory of each processor.
    """
    blocks = blocks_of(shape, plan.degrees)
    there = np.flatnonzero((blocks[:, :, 1] > blocks[:, :, 0]).all(axis=1))
    tasks, processors = keep_replicas(processors_by_point(plan)[there], memory_of)
    colors = there[tasks]
    return WeightHome(plan, processors, colors, memory_of[processors], blocks[colors])


def default_home(
    graph: Graph,
    operators: Operators | Mapping[str, OperatorPlan],
    parameter: str,
    machine: Machine,
    turn: int | None = None,
) -> WeightPlan:
    """The home that lets a parameter stay where it is used, as far as one processor uses each element.

    Args:
        graph: the graph.
        operators: the configuration of every operator by name.
        parameter: the parameter's name.
        machine: the machine; the processors are looked up in it.
        turn: of a parameter that lives whole; see ``turns_of``.

    Raises:
        RequestError: no such parameter, buffer or processor.
    """
    tensors = {tensor.name: tensor for tensor in graph.lasting}
    if parameter not in tensors:
        raise RequestError(
            f"plan: weights.{parameter}: the graph has no such parameter{nearest(parameter, [*tensors])}"
        )
    return _home(graph, dict(operators), tensors[parameter], _readers(graph), machine, turn)


def default_homes(
    graph: Graph, operators: Operators, machine: Machine, optimizer: AbstractOptimizer | None = None
) -> tuple[tuple[str, WeightPlan], ...]:
    """The default homes of all parameters and buffers, by name in order of creation; see ``default_home``."""
    table, readers, turns = dict(operators), _readers(graph), turns_of(graph, optimizer)
    return tuple(
        (tensor.name, _home(graph, table, tensor, readers, machine, turns.get(tensor.name))) for tensor in graph.lasting
    )


def turns_of(graph: Graph, optimizer: AbstractOptimizer | None) -> dict[str, int]:
    """By name of each parameter that its update needs whole, when it chooses where to live: the most work first.

    Args:
        graph: the graph.
        optimizer: what updates the parameters; None: what needs none whole.
    """
    if optimizer is None:
        return {}
    work = {
        tensor.name: optimizer.of(tensor.name).work(tensor.shape)
        for tensor in graph.parameters
        if tensor.requires_grad and optimizer.of(tensor.name).whole
    }
    return {name: turn for turn, name in enumerate(sorted(work, key=lambda name: -work[name]))}


def users_of(bound: BoundRule, place: int, config: OperatorPlan) -> Users:
    """The tiles of a weight that the points of an operator use, and the processors of those points.

    Args:
        bound: the operator's rule.
        place: of the weight among its operands.
        config: its degrees and processors.
    """
    tiles, points = bound.table(bound.degrees(dict(config.degrees))).used("operand", place)
    return tiles, processors_by_point(config)[points]


def home_among(shape: Sequence[int], users: Sequence[Users], unread: int, turn: int | None = None) -> WeightPlan:
    """The default home of a weight.

    If the tiles cut it into disjoint blocks that one processor each uses, the blocks live there. Otherwise it is cut
    along the one dimension that the tiles cut, or, where that is none, several or too short, along its largest (the
    first of equals), into as many blocks as there are processors that use it, at most one per index: every processor
    updates a part. Where blocks along the dimension that the tiles cut would lie in two tiles, or be more in one tile
    than in another, it is cut there as the tiles are, and each tile along the largest other dimension, if that comes to
    as many blocks. In order, each block goes to the processor without one that has the tile with the most of it, the
    first of equals.

    Args:
        shape: the weight's.
        users: its tiles and who uses them, operator by operator.
        unread: where it lives, whole, if nobody uses it.
        turn: of a weight that lives whole, when it chooses among those who use it; None: it may be cut.
    """
    users = [found for found in users if len(found[0])]
    if not users:
        return WeightPlan((1,) * len(shape), (unread,))
    widest = max(processors.shape[1] for _, processors in users)
    # Who is named twice uses it once.
    named = [np.take(processors, range(widest), axis=1, mode="clip") for _, processors in users]
    tiles, processors = np.concatenate([tiles for tiles, _ in users]), np.concatenate(named)
    if turn is not None:
        return WeightPlan((1,) * len(shape), (there_and_back(np.unique(processors).tolist(), turn),))
    return _in_place(shape, tiles, processors) or _spread(shape, tiles, processors)


def there_and_back(everyone: Sequence[int], turn: int) -> int:
    """Whose turn it is where those that come first take the most: of three 0 1 2, 2 1 0, 0 1 2, and so on."""
    lap, place = divmod(turn, len(everyone))
    return everyone[-1 - place if lap % 2 else place]


def _readers(graph: Graph) -> dict[int, list[tuple[Node, int]]]:
    """The nodes that read each tensor, and the places at which they do."""
    found: dict[int, list[tuple[Node, int]]] = {}
    for node in graph.nodes:
        for place, operand in enumerate(node.operands):
            if operand is not None:
                found.setdefault(operand, []).append((node, place))
    return found


def _home(
    graph: Graph,
    operators: dict[str, OperatorPlan],
    tensor: TensorInfo,
    readers: dict[int, list[tuple[Node, int]]],
    machine: Machine,
    turn: int | None,
) -> WeightPlan:
    """See ``default_home``."""
    users = [users_of(graph.bound(node), place, operators[node.name]) for node, place in readers.get(tensor.id, ())]
    read = any(len(tiles) for tiles, _ in users)
    home = home_among(tensor.shape, users, 0 if read else _writer(graph, operators, tensor), turn)
    for processor in home.processors:
        machine.processor(processor)
    return home


def _writer(graph: Graph, operators: dict[str, OperatorPlan], buffer: TensorInfo) -> int:
    """The first processor of the operator that makes the next value of a buffer that no operator reads; else 0."""
    value = graph.assignments.get(buffer.id)
    producer = None if value is None else graph.producer(value)
    return 0 if producer is None else operators[producer.name].processors[0]


def _in_place(shape: Sequence[int], tiles: Bounds, users: Table) -> WeightPlan | None:
    """The home exactly where the tiles are used, or None where that is not one processor per block."""
    owners: dict[tuple[int, ...], int] = {}
    rows = tiles.reshape(len(tiles), 2 * len(shape)).tolist()
    for tile, (first, *others) in zip(rows, users.tolist(), strict=True):
        if owners.setdefault(tuple(tile), first) != first or any(other != first for other in others):
            return None
    degrees = tuple(len({tile[2 * axis] for tile in owners}) for axis in range(len(shape)))
    if prod(degrees) != len(owners):
        return None
    blocks = [tuple(chain(*block)) for block in product(*map(split_range, shape, degrees))]
    if any(block not in owners for block in blocks):
        return None
    return WeightPlan(degrees, tuple(owners[block] for block in blocks))


def _spread(shape: Sequence[int], tiles: Bounds, users: Table) -> WeightPlan:
    """Blocks along one dimension over all processors that use the parameter, each where it is used."""
    everyone, place = np.unique(users, return_inverse=True)
    if not shape:
        return WeightPlan((), (int(everyone[0]),))
    cut = [axis for axis in range(len(shape)) if np.any(tiles[:, axis, 0] != tiles[0, axis, 0])]
    largest = max(range(len(shape)), key=lambda dimension: (shape[dimension], -dimension))
    axis = cut[0] if len(cut) == 1 and shape[cut[0]] >= len(everyone) else largest
    count = min(shape[axis], len(everyone))
    degrees = [count if dimension == axis else 1 for dimension in range(len(shape))]
    if not np.any(tiles[:, axis] != tiles[0, axis]):  # everyone uses all of it
        return WeightPlan(tuple(degrees), tuple(everyone[:count].tolist()))
    if cut == [axis]:
        degrees = _within_tiles(shape, tiles[:, axis], axis, count) or degrees
    part = np.arange(count) // prod(degrees[axis + 1 :]) % degrees[axis]
    low, high = np.asarray(split_range(shape[axis], degrees[axis])).T[:, part]
    shares = np.minimum(high, tiles[:, axis, 1, None]) - np.maximum(low, tiles[:, axis, 0, None])
    used = np.zeros((len(everyone), count), dtype=np.int64)
    for column in place.reshape(users.shape).T:
        np.maximum.at(used, column, shares)
    owners = []
    for block in range(count):
        owner = int(used[:, block].argmax())
        used[owner] = -1
        owners.append(int(everyone[owner]))
    return WeightPlan(tuple(degrees), tuple(owners))


def _within_tiles(shape: Sequence[int], tiles: Table, axis: int, count: int) -> list[int] | None:
    """The degrees of as many blocks, equally many in each tile, where those along one dimension are not; else None.

    Args:
        shape: the weight's.
        tiles: the first index of each along the dimension, and one past the last.
        axis: the dimension, which is the only one that the tiles cut.
        count: how many blocks there are.
    """
    edges = np.unique(tiles[:, 0])
    others = [dimension for dimension in range(len(shape)) if dimension != axis]
    second = max(others, key=lambda dimension: (shape[dimension], -dimension), default=axis)
    each, rest = divmod(count, len(edges))
    if second == axis or rest or shape[second] < each:
        return None
    mine, along = np.asarray(split_range(shape[axis], len(edges))), split_range(shape[axis], count)[::each]
    if not np.isin(tiles, mine).all() or np.array_equal(mine[:, 0], [low for low, _ in along]):
        return None
    return [len(edges) if dimension == axis else each if dimension == second else 1 for dimension in range(len(shape))]
