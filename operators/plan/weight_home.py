"""The default home of a weight: where it is used, if one processor uses each of its tiles; else spread evenly.

linear, weight (n=10, k=64)      the weight's tiles used by     home
n=2 on p0 p1 (parameter split)   [0:5] p0, [5:10] p1            degrees (2, 1) on p0 p1
b=2 on p0 p1 (sample split)      whole p0, whole p1             degrees (1, 2) on p0 p1
b=2 n=2 on p0 p1 p2 p3 (both)    [0:5] p0 p2, [5:10] p1 p3      degrees (4, 1) on p0 p2 p1 p3
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from maniple.operators.rules.configuration import OperatorPlan, WeightPlan
from maniple.operators.rules.tile import split_range
from maniple.regions.error import RequestError, nearest
from maniple.regions.partition import blocks
from maniple.regions.rectangle import Rect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import Node, TensorInfo
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

Operators = tuple[tuple[str, OperatorPlan], ...]


def default_home(
    graph: Graph, operators: Operators | Mapping[str, OperatorPlan], parameter: str, machine: Machine
) -> WeightPlan:
    """The home that lets a parameter stay where it is used, as far as one processor uses each element.

    If the tiles that the using operators read cut the parameter into disjoint blocks that one processor each uses,
    the blocks live there. Otherwise the parameter is cut along the one dimension that the tiles cut, or, where that is
    none, several or too short, along its largest (the first of equals), into as many blocks as there are processors
    that use it, at most one per index: every processor updates a part. In order, each block goes to the processor
    without one that has the tile with the most of it, the first of equals.

    Args:
        graph: the graph.
        operators: the configuration of every operator by name.
        parameter: the parameter's name.
        machine: the machine; the processors are looked up in it.

    Raises:
        RequestError: no such parameter, buffer or processor.
    """
    tensors = {tensor.name: tensor for tensor in graph.lasting}
    if parameter not in tensors:
        raise RequestError(
            f"plan: weights.{parameter}: the graph has no such parameter{nearest(parameter, [*tensors])}"
        )
    return _home(graph, dict(operators), tensors[parameter], _readers(graph), machine)


def default_homes(graph: Graph, operators: Operators, machine: Machine) -> tuple[tuple[str, WeightPlan], ...]:
    """The default homes of all parameters and buffers, by name in order of creation; see ``default_home``."""
    table, readers = dict(operators), _readers(graph)
    return tuple((tensor.name, _home(graph, table, tensor, readers, machine)) for tensor in graph.lasting)


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
) -> WeightPlan:
    """See ``default_home``."""
    users: dict[Rect, set[int]] = {}
    for node, place in readers.get(tensor.id, ()):
        plan = operators[node.name]
        for point, tile in enumerate(graph.bound(node).tiles(dict(plan.degrees))):
            rect = tile.operand_rects[place]
            if rect is not None and not rect.is_empty and not tile.is_empty:
                users.setdefault(rect, set()).update(plan.of_point(point))
    everyone = sorted({user for processors in users.values() for user in processors}) or _writers(
        graph, operators, tensor.name
    )
    for user in everyone:
        machine.processor(user)
    return _in_place(tensor.shape, users) or _spread(tensor.shape, users, everyone)


def _writers(graph: Graph, operators: dict[str, OperatorPlan], buffer: str) -> list[int]:
    """The first processor of the operator that makes the next value of a buffer that no operator reads; else 0."""
    value = graph.assignments.get(graph.tensor(buffer).id)
    producer = None if value is None else graph.producer(value)
    return [0 if producer is None else operators[producer.name].processors[0]]


def _in_place(shape: tuple[int, ...], users: dict[Rect, set[int]]) -> WeightPlan | None:
    """The home exactly where the tiles are used, or None where that is not one processor per block."""
    if not users or any(len(processors) != 1 for processors in users.values()):
        return None
    degrees = tuple(len({rect.lo[axis] for rect in users}) for axis in range(len(shape)))
    tiles = blocks(degrees).bind(Rect.of_shape(shape)).tiles
    if set(tiles) != set(users) or prod(degrees) != len(users):
        return None
    return WeightPlan(degrees, tuple(min(users[tile]) for tile in tiles))


def _spread(shape: tuple[int, ...], users: dict[Rect, set[int]], everyone: list[int]) -> WeightPlan:
    """Blocks along one dimension over all processors that use the parameter, each where it is used."""
    if not shape:
        return WeightPlan((), (everyone[0],))
    cut = [axis for axis in range(len(shape)) if len({rect.lo[axis] for rect in users}) > 1]
    largest = max(range(len(shape)), key=lambda dimension: (shape[dimension], -dimension))
    axis = cut[0] if len(cut) == 1 and shape[cut[0]] >= len(everyone) else largest
    count = min(shape[axis], len(everyone))
    spans = {(rect.lo[axis], rect.hi[axis]): set[int]() for rect in users}
    for rect, processors in users.items():
        spans[rect.lo[axis], rect.hi[axis]] |= processors
    degrees = tuple(count if dimension == axis else 1 for dimension in range(len(shape)))
    if len(spans) == 1:  # everyone uses all of it
        return WeightPlan(degrees, tuple(everyone[:count]))
    free, homes = list(everyone), list[int]()
    for low, high in split_range(shape[axis], count):
        used = dict.fromkeys(free, 0)
        for (first, last), processors in spans.items():
            for processor in processors & used.keys():
                used[processor] = max(used[processor], min(high, last) - max(low, first))
        homes.append(max(free, key=lambda processor: used[processor]))
        free.remove(homes[-1])
    return WeightPlan(degrees, tuple(homes))
