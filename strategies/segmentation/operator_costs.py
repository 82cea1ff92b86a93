"""The graph of costs of an operator graph: times from a roofline of the machine, sizes from shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from maniple.strategies.segmentation.cost_graph import CostGraph, CostNode

if TYPE_CHECKING:
    from maniple.operators.graph import Graph, Node
    from maniple.runtime.machine import Machine

__all__: list[str] = []


class OperatorTimes(Protocol):
    """What an operator takes: a cost model, as a segmentation needs it."""

    def __call__(self, graph: Graph, node: Node, machine: Machine) -> tuple[float, float]:
        """The seconds of forward and of backward of a whole operator on one processor."""
        ...


def roofline(graph: Graph, node: Node, machine: Machine) -> tuple[float, float]:
    """The seconds of an operator whose arithmetic and memory traffic overlap, at the machine's rates.

    The rates are those of processor 0; its share of its memory's bandwidth is an even one.
    """
    processor = machine.processor(0)
    memory = machine.memories[processor.memory]
    bandwidth = memory.bandwidth / len(machine.processors_of(processor.memory))
    bound = graph.bound(node)
    itemsize = np.dtype(graph.tensors[node.results[0]].dtype).itemsize
    forward, backward = 0.0, 0.0
    for tile in bound.tiles({factor.name: 1 for factor in bound.factors}):
        flops, touched = node.operator.flops(tile), node.operator.bytes_touched(tile, itemsize)
        forward += max(flops.forward / processor.flops_per_s, touched.forward / bandwidth)
        backward += max(flops.backward / processor.flops_per_s, touched.backward / bandwidth)
    return forward, backward


def cost_graph(graph: Graph, machine: Machine, times: OperatorTimes = roofline) -> CostGraph:
    """The graph of costs of a training step.

    A weight that operators share counts with the first of them. A result is kept for backward where its own or a
    reader's backward reads it.

    Args:
        graph: the operators.
        machine: whose rates count.
        times: the cost model.
    """
    producers = {result: node for node in graph.nodes for result in node.results}
    kept: set[int | None] = set()
    for node in graph.nodes:
        reads = node.operator.backward_reads
        kept |= {node.operands[place] for place in reads.operand_places(len(node.operands))}
        kept |= {node.results[place] for place in reads.results}
    counted: set[int] = set()
    nodes: list[CostNode] = []
    edges: set[tuple[str, str]] = set()
    for node in graph.nodes:
        forward, backward = times(graph, node, machine)
        weights = {i for i in node.operands if i is not None and graph.tensors[i].kind == "parameter"} - counted
        counted |= weights
        nodes.append(
            CostNode(
                id=node.name,
                label=node.operator.name,
                forward_s=forward,
                backward_s=backward,
                activation_bytes=sum(tensor_bytes(graph, result) for result in node.results),
                parameter_bytes=sum(tensor_bytes(graph, weight) for weight in weights),
                stored_bytes=sum(tensor_bytes(graph, result) for result in node.results if result in kept)
                + _saved_bytes(graph, node),
            )
        )
        edges |= {(producers[i].name, node.name) for i in node.operands if i in producers}
    return CostGraph.in_order(graph.name, nodes, sorted(edges))


def tensor_bytes(graph: Graph, tensor: int) -> int:
    """The bytes of a tensor."""
    info = graph.tensors[tensor]
    volume = 1
    for extent in info.shape:
        volume *= extent
    return volume * np.dtype(info.dtype).itemsize


def _saved_bytes(graph: Graph, node: Node) -> int:
    """The bytes of what forward leaves for backward besides operands and result."""
    bound = graph.bound(node)
    total = 0
    for (saved, _), shape in zip(bound.rule.saved, bound.saved_shapes, strict=True):
        dtype = saved.dtype or graph.tensors[node.results[0]].dtype
        total += int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return total
