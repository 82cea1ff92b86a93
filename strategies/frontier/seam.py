"""Seams: the results that are always kept from forward to backward, so that what is computed again is one segment's.

What comes after a seam knows the graph before it through the seam alone, and through earlier ones that many read, as
what an encoder gives all layers of a decoder. Between two seams lies a segment with a weight, and the next operator has
weights, too: a seam is what goes into a layer.

    norm, linear, gelu, linear, add      a block, whose add is a seam: the rest may be computed again
    conv, relu, conv, relu, pool, conv   relu and pool are seams: convolutions may be computed again

Any operators of a segment may be computed again. What the additive memory does not count of them, for it takes turns,
is at most what one segment holds. A graph without a seam has nothing that may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.operators.lowering.micro_batch import MicroBatches
from maniple.strategies.interface.layer import weights_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.graph.graph import Graph

__all__: list[str] = []

READERS = 4
"""What more operators than these read of a seam is no reason against one behind it: query, key, value and a sum do."""


def recomputable(graph: Graph) -> tuple[bool, ...]:
    """Say of each operator whether its results may be computed again.

    Args:
        graph: the graph.
    """
    found = seams(graph)
    last = max(found, default=-1)
    return tuple(node.id not in found and node.id < last for node in graph.nodes)


def again_in_turns(graph: Graph, again: Sequence[bool], micro_batches: int) -> tuple[bool, ...]:
    """Say of each operator whether its results may be computed again, where stages take turns.

    What is not cut into micro-batches, as what counts the steps of a batch norm, runs once in a step, and is kept.

    Args:
        graph: the graph.
        again: of every operator whether it may be where a step is one.
        micro_batches: how many there are.
    """
    if micro_batches == 1:
        return tuple(again)
    parts = MicroBatches(graph, micro_batches)
    return tuple(may and parts.is_cut(node) for may, node in zip(again, graph.nodes, strict=True))


def seams(graph: Graph) -> frozenset[int]:
    """The operators whose results are seams.

    Args:
        graph: the graph.
    """
    nodes = graph.nodes
    readers: dict[int, list[int]] = {}
    for place, node in enumerate(nodes):
        for operand in dict.fromkeys(node.operands):
            if operand is not None:
                readers.setdefault(operand, []).append(place)
    found: set[int] = set()
    open_until, weighted = -1, False
    for place, node in enumerate(nodes[:-1]):
        own = [readers.get(result, []) for result in node.results]
        mine = max((each[-1] for each in own if each), default=-1)
        weighted |= bool(weights_of(graph, node))
        if open_until <= place < mine and weighted and weights_of(graph, nodes[place + 1]):
            found.add(node.id)
            weighted = False
            if max(map(len, own)) > READERS:
                continue
        open_until = max(open_until, mine)
    return frozenset(found)
