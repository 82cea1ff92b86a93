"""The graph of costs of an operator graph: times from a cost model, sizes from shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.bound import NS, whole_step
from maniple.strategies.cost_model.analytic import Analytic
from maniple.strategies.pipeline.cost_graph import CostGraph, CostNode

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph, Node
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.pipeline.fleet import Fleet

__all__: list[str] = []


@final
@dataclass(slots=True)
class Times:
    """Seconds of the passes of an operator, and what of them each micro-batch takes however small."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    forward_start_s: float = 0.0
    backward_start_s: float = 0.0


def operator_times(
    graph: Graph, machine: Machine, model: CostModel | None = None, processor: int = 0
) -> dict[str, Times]:
    """What every operator takes in a step that one processor computes alone.

    Gradients of weights belong to the backward pass. So does the update of a weight, with the first operator that uses
    it; it does not start anew for each micro-batch.

    Args:
        graph: the operators; it must have a loss.
        machine: the machine.
        model: of the tasks' times; by default the roofline.
        processor: the processor.
    """
    model = Analytic(machine) if model is None else model
    start_s = machine.processor(processor).launch_s
    times = {node.name: Times() for node in graph.nodes}
    users = {graph.tensors[i].name: node.name for node in reversed(graph.nodes) for i in node.operands if i is not None}
    for launch in whole_step(graph, machine, processor):
        name, _, part = launch.name.rpartition(".")
        if part in {"input", "fetch"}:
            continue
        seconds = float(model.task_ns(launch)[0]) * NS
        if part == "forward":
            times[name].forward_s += seconds
            times[name].forward_start_s += min(start_s, seconds)
        elif part in {"norm", "update", "assign"}:
            times[users[name]].backward_s += seconds
        else:
            times[name].backward_s += seconds
            times[name].backward_start_s += min(start_s, seconds)
    return times


def cost_graph(graph: Graph, machine: Machine, model: CostModel | None = None, processor: int = 0) -> CostGraph:
    """The graph of costs of a training step.

    A weight that operators share counts with the first of them. A result is kept for backward where its own or a
    reader's backward reads it. Operators that the loss does not depend on, such as counters of batches, run beside
    another one: they are free to go anywhere, and as nodes of their own would double the ideals each.

    Args:
        graph: the operators; it must have a loss.
        machine: whose rates count.
        model: of the tasks' times; by default the roofline.
        processor: on which they are taken.
    """
    times = operator_times(graph, machine, model, processor)
    groups = _groups(graph)
    home = {node.name: group[0].name for group in groups for node in group}
    producers = {result: node for node in graph.nodes for result in node.results}
    kept: set[int | None] = set()
    read: set[int] = set()
    for node in graph.nodes:
        reads = node.operator.backward_reads
        kept |= {node.operands[place] for place in reads.operand_places(len(node.operands))}
        kept |= {node.results[place] for place in reads.results}
        read |= {i for i in node.operands if i in producers and home[producers[i].name] != home[node.name]}
    counted: set[int] = set()
    nodes: list[CostNode] = []
    for group in groups:
        own = [times[node.name] for node in group]
        results = [result for node in group for result in node.results]
        weights = {i for n in group for i in n.operands if i is not None and graph.tensors[i].kind == "parameter"}
        nodes.append(
            CostNode(
                id=group[0].name,
                label=group[0].operator.name,
                forward_s=sum(t.forward_s for t in own),
                backward_s=sum(t.backward_s for t in own),
                activation_bytes=sum(tensor_bytes(graph, result) for result in results if result in read),
                parameter_bytes=sum(tensor_bytes(graph, weight) for weight in weights - counted),
                stored_bytes=sum(tensor_bytes(graph, result) for result in results if result in kept)
                + sum(_saved_bytes(graph, node) for node in group),
                forward_start_s=sum(t.forward_start_s for t in own),
                backward_start_s=sum(t.backward_start_s for t in own),
                beside=tuple(node.name for node in group[1:]),
            )
        )
        counted |= weights
    pairs = {
        (home[producers[i].name], home[node.name]) for node in graph.nodes for i in node.operands if i in producers
    }
    return CostGraph.in_order(graph.name, nodes, sorted((a, b) for a, b in pairs if a != b))


def tensor_bytes(graph: Graph, tensor: int) -> int:
    """The bytes of a tensor."""
    info = graph.tensors[tensor]
    volume = 1
    for extent in info.shape:
        volume *= extent
    return volume * np.dtype(info.dtype).itemsize


def _groups(graph: Graph) -> list[list[Node]]:
    """The operators that the loss depends on, each with those that run beside it, in the order of the graph.

    An operator that the loss does not depend on joins the last one that feeds it, or where none does the next one of
    the graph.

        bn.count + 1    bn       bn.variance    relu       the loss depends on bn and relu
        beside bn       itself   beside bn      itself
    """
    producers = {result: node for node in graph.nodes for result in node.results}
    needed: set[str] = set()
    reading = {graph.loss_tensor}
    for node in reversed(graph.nodes):
        if not reading.isdisjoint(node.results):
            needed.add(node.name)
            reading |= set(node.operands)
    groups = [[node] for node in graph.nodes if node.name in needed]
    place = {group[0].name: number for number, group in enumerate(groups)}
    following = 0
    for node in graph.nodes:
        if node.name in needed:
            following = place[node.name] + 1
            continue
        feeding = [place[producers[i].name] for i in node.operands if i in producers]
        place[node.name] = max(feeding, default=min(following, len(groups) - 1))
        groups[place[node.name]].append(node)
    return groups


def _saved_bytes(graph: Graph, node: Node) -> int:
    """The bytes of what forward leaves for backward besides operands and result."""
    bound = graph.bound(node)
    total = 0
    for (saved, _), shape in zip(bound.rule.saved, bound.saved_shapes, strict=True):
        dtype = saved.dtype or graph.tensors[node.results[0]].dtype
        total += int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return total


def costs_by_class(
    graph: Graph, machine: Machine, fleet: Fleet, model: CostModel | None = None, own: CostGraph | None = None
) -> tuple[CostGraph, ...]:
    """The graph of costs on a processor of each class of a fleet; only times differ.

    Args:
        graph: the operators; it must have a loss.
        machine: whose rates count.
        fleet: its processors.
        model: of the tasks' times; by default the roofline.
        own: that of processor 0, where it is known.
    """
    firsts = [members[0] for members in fleet.classes]
    return tuple(
        own if own is not None and first == 0 else cost_graph(graph, machine, model, first) for first in firsts
    )
