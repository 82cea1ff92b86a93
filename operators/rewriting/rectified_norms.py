"""Rectified batch norms: what a module has behind a batch norm becomes one operator with it.

    batch_norm -> relu                    becomes    batch_norm+relu
    batch_norm -> add -> relu                        batch_norm+add+relu, which also reads what is added

Only of what nobody else reads. Of an add of two batch norms the later one takes it. The operator has one configuration,
so the three run alike under any plan: a plan that ran them apart would only move what lies between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.operators.library.elementwise.pointwise import Add, ReLU
from maniple.operators.library.norms.normalization import BatchNorm
from maniple.operators.library.norms.rectified_batch_norm import RectifiedBatchNorm
from maniple.operators.rewriting.replacement import Replacement, replaced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maniple.operators.graph.graph import Graph
    from maniple.operators.graph.node import Node

__all__: list[str] = []


def rectify_norms(graph: Graph) -> Graph:
    """The graph with rectified batch norms; itself where it has none. Its state is not copied.

    What the module runs under autocast stays as it is.
    """
    read: dict[int | None, int] = dict.fromkeys((graph.loss_tensor, *graph.outputs.values()), 2)
    for tensor in (*graph.assignments.values(), *(operand for node in graph.nodes for operand in node.operands)):
        read[tensor] = read.get(tensor, 0) + 1
    found, taken = list[Replacement](), set[int]()
    for node in graph.nodes:
        item = _replacement(graph, node, read) if isinstance(node.operator, ReLU) else None
        if item is not None and not taken.intersection(each.id for each in item.nodes):
            found.append(item)
            taken.update(each.id for each in item.nodes)
    return replaced(graph, found)


def _replacement(graph: Graph, relu: Node, read: Mapping[int | None, int]) -> Replacement | None:
    """What takes the place of a ReLU and of what is before it; None where that is no batch norm."""
    before = graph.producer(relu.operands[0] or 0)
    if before is None or read[relu.operands[0]] > 1:
        return None
    between = (before,) if isinstance(before.operator, Add) else ()
    sides = (relu.operands[0],) if not between else before.operands
    norms = [norm for side in sides if (norm := _norm(graph, side, read)) is not None]
    if not norms:
        return None
    norm = max(norms, key=lambda node: node.id)
    (branch,) = [side for side in before.operands if side != norm.results[0]] if between else (None,)
    nodes = (norm, *between, relu)
    if not isinstance(norm.operator, BatchNorm) or any(node.name in graph.autocast for node in nodes):
        return None
    results = (relu.results[0], *norm.results[1:])
    return Replacement(nodes, RectifiedBatchNorm(norm.operator), (*norm.operands[:3], branch), norm.own, results)


def _norm(graph: Graph, tensor: int | None, read: Mapping[int | None, int]) -> Node | None:
    """The batch norm that gives a tensor which is read once; None where none does."""
    node = None if tensor is None or read[tensor] > 1 else graph.producer(tensor)
    return node if node is not None and isinstance(node.operator, BatchNorm) and node.results[0] == tensor else None
