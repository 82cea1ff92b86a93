"""Layerings: every layer on a block of processors that shares its samples; weights are synchronised within blocks.

In some, processors of one host share the features of those layers that can be cut so, and hosts the samples. In others
the last layer has several blocks, which share its features alone, and what follows it is cut as it is. A classifier of
words is so synchronised by nobody, and its losses are found without moving what it gives for each word (M. Shoeybi et
al., Megatron-LM, arXiv 1909.08053, section 3).

The steps of a recurrent layer use one weight, so they are best kept to few processors that are near each other, and
layers on different blocks work on different steps at once. Layers go to blocks by work, the largest first, each to the
block with the least so far (R. L. Graham, Bounds on Multiprocessing Timing Anomalies, SIAM J. Appl. Math. 17, 1969).

    blocks of 2 on 4 processors      work  degrees  processors   two features   the last layer on all
    embedding                        0     b=2      p2 p3        d=2            d=2
    lstm of layer 0, all steps       40    b=2      p0 p1        b=2            b=2
    lstm of layer 1, all steps       40    b=2      p2 p3        b=2            b=2
    linear                           20    b=2      p0 p1        n=2            n=4, p0 to p3
    cross_entropy                    0     b=2      p0 p1        c=2            c=4, p0 to p3
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, ClassVar, final

from maniple.strategies.interface.layer import is_unrolled, weights_of
from maniple.strategies.interface.placement import complete, node_flops, shared
from maniple.strategies.interface.space import Space
from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import OperatorPlan, Plan

__all__: list[str] = []


@final
class Layering(AbstractDirectStrategy):
    """Gives every layer a block of neighbouring processors, which share its samples.

    Args:
        size: how many processors are a block; it divides the machine's.
        features: how many neighbours of a block share features instead.
        last: so many processors share the features of the last layer, a number of blocks that divides their number;
            0 if it has a block as all layers have.
    """

    name: ClassVar[str] = "layering"

    def __init__(self, size: int, features: int = 1, last: int = 0) -> None:
        self._size, self._features, self._last = size, features, last

    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem."""
        graph = problem.graph
        space = Space.of(graph, len(problem.machine.processors))
        blocks = self._blocks(graph, space)
        last = len(blocks) - 1
        operators: list[OperatorPlan] = []
        for node, layer in zip(graph.nodes, space.layers, strict=True):
            features = (self._last or self._features) if layer == last else self._features
            follows = layer == last and features > 1 and not weights_of(graph, node)
            found = _as_before(space, operators) if follows else None
            operators.append(found or shared(graph, node, blocks[layer], features))
        named = tuple((node.name, own) for node, own in zip(graph.nodes, operators, strict=True))
        return complete(problem, self.name, named)

    def _blocks(self, graph: Graph, space: Space) -> list[range]:
        """The processors of each layer."""
        work = [0] * (max(space.layers) + 1)
        for node in graph.nodes:
            work[space.layers[node.id]] += node_flops(graph, node)
        widths = [1] * (len(work) - 1) + [max(1, self._last // self._size)]
        places = least_loaded(work, space.operators[0].processors // self._size, widths)
        ends = zip(places, widths, strict=True)
        return [range(place * self._size, (place + width) * self._size) for place, width in ends]


def _as_before(space: Space, operators: Sequence[OperatorPlan]) -> OperatorPlan | None:
    """What the next operator becomes if it is cut as the first one of its layer that it shares a tensor with."""
    number = len(operators)
    for place, other in enumerate(space.neighbours[number]):
        if other < number and space.layers[other] == space.layers[number]:
            choice = space.operators[other].choice(operators[other])
            found = None if choice is None else space.carry(number, place, choice)
            return None if found is None else space.operators[number].plan(found)
    return None


def layerings(problem: Problem) -> tuple[Layering, ...]:
    """Those with blocks of every size that divides the machine, if layers can work on different steps at once.

    First those by sample, then those by feature too, on as many processors as a block has of a host, and then those
    whose last layer has one, two, four and so on of these blocks.
    """
    machine = problem.machine
    count, host = len(machine.processors), machine.memories[machine.processors[0].memory].host
    near = sum(machine.memories[processor.memory].host == host for processor in machine.processors)
    sizes = [size for size in range(2, count // 2 + 1) if count % size == 0] if is_unrolled(problem.graph) else []
    by_feature = [(size, gcd(size, near)) for size in sizes if gcd(size, near) > 1]
    return (
        *(Layering(size) for size in sizes),
        *(Layering(size, features) for size, features in by_feature),
        *(
            Layering(size, features, size << doubled)
            for size, features in by_feature
            for doubled in range((count // size).bit_length())
            if count // size % (1 << doubled) == 0 and size << doubled > features
        ),
    )


def least_loaded(work: Sequence[int], blocks: int, widths: Sequence[int]) -> tuple[int, ...]:
    """The first block of each item, the largest first, each where the least is so far.

    Args:
        work: of each item.
        blocks: how many there are.
        widths: how many blocks share each item, a number that divides theirs: the first, second or another such group.
    """
    loads, places = [0.0] * blocks, [0] * len(work)
    for item in sorted(range(len(work)), key=lambda item: (-work[item], item)):
        width = widths[item]
        groups = range(0, blocks, width)
        places[item] = min(groups, key=lambda first: max(loads[first : first + width]))
        for block in range(places[item], places[item] + width):
            loads[block] += work[item] / width
    return tuple(places)
