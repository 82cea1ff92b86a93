"""The graph of costs of an operator graph: times from a cost model, sizes from shapes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.process.error import RequestError
from maniple.runtime.schedule.roofline import Rooflines, fold_ns
from maniple.strategies.bound import NS, accumulated_step, whole_step
from maniple.strategies.cost_model.analytic import Analytic
from maniple.strategies.pipeline.cost_graph import CostGraph, CostNode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from maniple.operators.graph.graph import Graph, Node
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.launch import Launch
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.pipeline.fleet import Fleet

__all__: list[str] = []

ONCE = frozenset(("norm", "update", "assign"))
"""The parts of a step that are of weights, and come once, however many micro-batches there are."""


@final
@dataclass(slots=True)
class Times:
    """Seconds of the passes of an operator, and what of them each micro-batch takes however small."""

    forward_s: float = 0.0
    forward_start_s: float = 0.0
    backward_s: float = 0.0
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
    return _added_up(graph, whole_step(graph, machine, processor), model, machine.processor(processor).launch_s)


def times_of_parts(
    graph: Graph, machine: Machine, parts: int, model: CostModel | None = None, processor: int = 0
) -> dict[str, Times]:
    """What every operator takes in a step of several micro-batches that one processor computes alone, as they run.

    What each micro-batch takes however small follows from what the mini-batch takes whole and in micro-batches, as if
    the rest were proportional to samples: a product that reads its weights each time, say, or a body that adds to
    gradients where that of a mini-batch writes them. Folds count, too: of the gradient of what several operators read.

        samples    whole      in 4 parts      however small      proportional
        linear     10 ms      4 x 4 ms        2 ms each          8 ms

    Args:
        graph: the operators; it must have a loss.
        machine: the machine.
        parts: how many micro-batches.
        model: of the tasks' times; by default the roofline.
        processor: the processor.

    Raises:
        RequestError: micro-batches cannot go through the graph one by one.
    """
    model, start_s = Analytic(machine) if model is None else model, machine.processor(processor).launch_s
    rooflines = Rooflines.of(machine)

    def taken(count: int) -> dict[str, Times]:
        launches = accumulated_step(graph, machine, processor, count)
        found, users = _added_up(graph, launches, model, start_s), _first_users(graph)
        for name, part, seconds in _folds(launches, rooflines, processor):
            _add_backward(found, users, name, part, seconds, start_s)
        return found

    whole = taken(1)
    if parts == 1:
        return whole
    cut, found = taken(parts), dict[str, Times]()
    for name, one in whole.items():
        forward = _with_start(one.forward_s, cut[name].forward_s, parts)
        backward = _with_start(one.backward_s, cut[name].backward_s, parts)
        found[name] = Times(*forward, *backward)
    return found


def _with_start(whole_s: float, cut_s: float, parts: int) -> tuple[float, float]:
    """Seconds of a mini-batch, and of them what each of its micro-batches takes however small."""
    start_s = max(0.0, (cut_s - whole_s) / (parts - 1))
    return cut_s - (parts - 1) * start_s, start_s


def _added_up(graph: Graph, launches: Sequence[Launch], model: CostModel, start_s: float) -> dict[str, Times]:
    """What every operator takes of some launches; those of equal micro-batches are priced once."""
    times, users = {node.name: Times() for node in graph.nodes}, _first_users(graph)
    priced: dict[object, float] = {}
    for launch in launches:
        name, part = _operator_and_part(launch)
        if part in {"input", "fetch"}:
            continue
        needs = tuple((need.rects[0].volume, need.privilege) for need in launch.requirements)
        if (name, part, needs) not in priced:
            priced[name, part, needs] = float(model.task_ns(launch)[0]) * NS
        seconds = priced[name, part, needs]
        if part == "forward":
            times[name].forward_s += seconds
            times[name].forward_start_s += min(start_s, seconds)
        else:
            _add_backward(times, users, name, part, seconds, start_s)
    return times


def _add_backward(
    times: dict[str, Times], users: Mapping[str, str], name: str, part: str, seconds: float, start_s: float
) -> None:
    """Add what a launch of an operator's backward takes, or of weights, which is once and their first user's."""
    if part in ONCE:
        times[users[name.partition("+")[0]]].backward_s += seconds
    else:
        times[name].backward_s += seconds
        times[name].backward_start_s += min(start_s, seconds)


def _first_users(graph: Graph) -> dict[str, str]:
    """By a tensor's name the first operator that reads it: whose a weight's costs are."""
    return {graph.tensors[i].name: node.name for node in reversed(graph.nodes) for i in node.operands if i is not None}


def _operator_and_part(launch: Launch) -> tuple[str, str]:
    """Of which operator a launch is, or of which weights, and what of it."""
    name, _, part = launch.name.partition("#")[0].rpartition(".")
    return name, part


def _folds(launches: Sequence[Launch], rooflines: Rooflines, processor: int) -> Iterator[tuple[str, str, float]]:
    """Who reads what several tasks contributed: its operator or weights, its part, and seconds of folding that.

    A task that contributes to the gradient of what several operators read writes an instance of its own. Who reads it
    has them folded: all are read, and what they add up to is written. That is a backward of each micro-batch, or the
    update of a weight that several operators read, once.

    Args:
        launches: of a step, in order.
        rooflines: what processors reach.
        processor: who folds.
    """
    given = defaultdict[int, set[object]](set)
    for number, launch in enumerate(launches):
        for need in launch.requirements:
            if need.privilege.kind == "reduce":
                # What accumulates adds to one instance for all micro-batches of its operator.
                given[need.region.id].add(_operator_and_part(launch) if need.privilege.accumulates else number)
            elif need.privilege.reads and (count := len(given.pop(need.region.id, ()))) > 1:
                touched = (count + 1) * need.rects[0].volume * need.region.itemsize
                taken_ns = fold_ns(rooflines, np.asarray([touched]), np.asarray([processor]))
                yield *_operator_and_part(launch), float(taken_ns[0]) * NS


def cost_graph(
    graph: Graph, machine: Machine, model: CostModel | None = None, processor: int = 0, parts: int = 0
) -> CostGraph:
    """The graph of costs of a training step.

    A weight that operators share counts with the first of them. A result is kept for backward where its own or a
    reader's backward reads it. Operators that the loss does not depend on, such as counters of batches, run beside
    another one: they are free to go anywhere, and as nodes of their own would double the ideals each.

    Args:
        graph: the operators; it must have a loss.
        machine: whose rates count.
        model: of the tasks' times; by default the roofline.
        processor: on which they are taken.
        parts: of how many micro-batches; 0: of any number, each of which takes a launch of each task however small.

    Raises:
        RequestError: so many micro-batches cannot go through the graph one by one.
    """
    if parts:
        times = times_of_parts(graph, machine, parts, model, processor)
    else:
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
    graph: Graph,
    machine: Machine,
    fleet: Fleet,
    model: CostModel | None = None,
    parts: int = 0,
) -> tuple[CostGraph, ...]:
    """The graph of costs on a processor of each class of a fleet; only times differ. See `pipeline_costs`.

    Args:
        graph: the operators; it must have a loss.
        machine: whose rates count.
        fleet: its processors.
        model: of the tasks' times; by default the roofline.
        parts: of how many micro-batches; 0: see `cost_graph`.
    """
    firsts = [members[0] for members in fleet.classes]
    return tuple(pipeline_costs(graph, machine, model, first, parts) for first in firsts)


def pipeline_costs(
    graph: Graph, machine: Machine, model: CostModel | None = None, processor: int = 0, parts: int = 0
) -> CostGraph:
    """The graph of costs for a pipeline of some micro-batches.

    Where micro-batches cannot go through the graph one by one, as through an exact batch norm, each is taken to add a
    launch of each task and nothing else, and the graph says why: such a pipeline may still run, with a border of stages
    there.

    Args:
        graph: the operators; it must have a loss.
        machine: whose rates count.
        model: of the tasks' times; by default the roofline.
        processor: on which they are taken.
        parts: of how many micro-batches; 0: see `cost_graph`.
    """
    try:
        return cost_graph(graph, machine, model, processor, parts)
    except RequestError as error:
        if not parts:
            raise
        *_, why = str(error).splitlines()
        return replace(cost_graph(graph, machine, model, processor), uncounted=why.strip())
