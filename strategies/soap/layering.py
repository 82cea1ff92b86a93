"""Layerings: every layer on a block of processors that shares its samples; weights are synchronised within blocks.

In some, processors of one host share the features of those layers that can be cut so, and hosts the samples.

The steps of a recurrent layer use one weight, so they are best kept to few processors that are near each other, and
layers on different blocks work on different steps at once. Layers go to blocks by work, the largest first, each to the
block with the least so far (R. L. Graham, Bounds on Multiprocessing Timing Anomalies, SIAM J. Appl. Math. 17, 1969).

    blocks of 2 on 4 processors      work  degrees  processors
    embedding                        0     b=2      p2 p3
    lstm of layer 0, all steps       40    b=2      p0 p1
    lstm of layer 1, all steps       40    b=2      p2 p3
    linear, cross_entropy            20    b=2      p0 p1

With two features, the same but for

    embedding                        0     d=2      p2 p3
    linear                           20    n=2      p0 p1
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, ClassVar, final

from maniple.strategies.layer import is_unrolled, layers_of
from maniple.strategies.placement import complete, node_flops, shared
from maniple.strategies.strategy import AbstractDirectStrategy, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.plan import Plan

__all__: list[str] = []


@final
class Layering(AbstractDirectStrategy):
    """Gives every layer a block of neighbouring processors, which share its samples.

    Args:
        size: how many processors are a block; it divides the machine's.
        features: how many neighbours of a block share features instead.
    """

    name: ClassVar[str] = "layering"

    def __init__(self, size: int, features: int = 1) -> None:
        self._size, self._features = size, features

    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem."""
        graph, processors = problem.graph, problem.machine.processors
        blocks = [processors[first : first + self._size] for first in range(0, len(processors), self._size)]
        layers = layers_of(graph)
        work = [0] * (max(layers) + 1)
        for node in graph.nodes:
            work[layers[node.id]] += node_flops(graph, node)
        places = least_loaded(work, len(blocks))
        owners = [[processor.id for processor in blocks[place]] for place in places]
        operators = ((node.name, shared(graph, node, owners[layers[node.id]], self._features)) for node in graph.nodes)
        return complete(problem, self.name, tuple(operators))


def layerings(problem: Problem) -> tuple[Layering, ...]:
    """Those with blocks of every size that divides the machine, if layers can work on different steps at once.

    First those by sample, then those by feature too, on as many processors as a block has of a host.
    """
    machine = problem.machine
    count, host = len(machine.processors), machine.memories[machine.processors[0].memory].host
    near = sum(machine.memories[processor.memory].host == host for processor in machine.processors)
    sizes = [size for size in range(2, count // 2 + 1) if count % size == 0] if is_unrolled(problem.graph) else []
    return (
        *(Layering(size) for size in sizes),
        *(Layering(size, gcd(size, near)) for size in sizes if gcd(size, near) > 1),
    )


def least_loaded(work: Sequence[int], blocks: int) -> tuple[int, ...]:
    """The block of each item, the largest first, each where the least is so far.

    Args:
        work: of each item.
        blocks: how many there are.
    """
    loads, places = [0] * blocks, [0] * len(work)
    for item in sorted(range(len(work)), key=lambda item: (-work[item], item)):
        places[item] = loads.index(min(loads))
        loads[places[item]] += work[item]
    return tuple(places)
