"""A lower bound on the step time of every plan for a graph on a machine.

No plan is faster than any of

    work        all tasks, if every processor were always busy and nothing were split
    path        the longest chain of launches that need each other, each as short as its smallest possible part
    report      the loss reaches every rank: it crosses a link after a chain through the forward pass, or every rank
                computes the whole forward pass in one memory
    exchange    one memory's processors do all the work, or something crosses a link within a chain of launches

**Work and path.** A task takes launch + max(operations / rate, bytes / bandwidth). Cutting an operator divides its
operations and, at best, its bytes, and adds a launch for each part: so the parts together take no less than the whole,
and a part with a share s of the operator takes no less than launch + s (whole - launch). An operator whose split needs
an exchange inside it is replaced by primitives where it is split, which may take less or more than its fused body: its
work is that of the one or of the others, whichever is less, and on a path it counts for one launch each way. The
arrival of an input and the fetch of the loss are launches too.

**Report.** Take a memory. Either all that its loss is made of is computed there, or something on the way there crosses
a link, after the task that made it and before the fetch: no sooner than the shortest chain from an input to the loss.

**Exchange.** Call an operator *tight* if every split of it makes two processors use one element: a factor is missing
from a weight (whose gradient then folds), from an operand with a gradient (likewise), or from a result (whose parts
fold). If a tight operator is on two memories, something crosses. If two operators on different memories need each
other's values, something crosses: if not forward, because what is needed is computed twice, then on the way back, for
gradients are computed once. So if every operator depends on a tight one, or one on it, and not all are in one memory,
something crosses between two launches, or between a gradient and its weight, and some chain goes through both ends.

    linear, b=4 on 4 processors of one memory, whole 9 us, launch 1 us      work 9 us / 4      path 1 us + 8 us / 4
    the same on 4 memories, links of 100 us                                 exchange 9 us: all in one memory
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from maniple.operators.composite import lowered
from maniple.operators.configuration import OperatorPlan
from maniple.operators.differentiation import differentiated
from maniple.operators.optimizer import SGD
from maniple.runtime.roofline import bandwidth, task_ns
from maniple.strategies.placement import complete, whole
from maniple.strategies.simulation.step import StepLaunches
from maniple.strategies.strategy import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.operators.graph import Graph, Node
    from maniple.operators.rule import BoundFactor
    from maniple.runtime.launch import Launch
    from maniple.runtime.machine import Machine

__all__: list[str] = []

NS = 1e-9


@dataclass(frozen=True, slots=True)
class _Span:
    """A launch of the step and how long it takes at least, in nanoseconds.

    Args:
        launch: the launch as one processor runs it whole.
        whole: its time then, on the fastest processor.
        least: the time of its smallest possible part.
    """

    launch: Launch
    whole: float
    least: float


def lower_bound_s(graph: Graph, machine: Machine) -> float:
    """Seconds below which no plan can go, by the roofline of the machine's processors.

    Args:
        graph: the graph; it must have a loss.
        machine: the machine.
    """
    count = len(machine.processors)
    most = max(len(machine.processors_of(memory.id)) for memory in machine.memories)
    launch_ns = min(processor.launch_s for processor in machine.processors) / NS
    spans = _spans(graph, machine, launch_ns)
    work = sum(span.whole for span in spans)
    heads, tails = _heads(spans, partial=True), _tails(spans)
    found = [work / count, max(heads[at] + tails[at] for at in range(len(spans)))]
    crossing = _crossing_ns(machine)
    if crossing > 0:
        sure = _heads(spans, partial=False)
        forward = [at for at, span in enumerate(spans) if span.launch.kind.endswith(".forward")]
        ways = _tails([spans[at] for at in forward])
        shortest = min(sure[at] + way for at, way in zip(forward, ways, strict=True))
        computed = sum(spans[at].whole for at in forward) / most
        found.append(min(shortest + crossing, computed) + launch_ns)
        if _held_together(graph):
            shortest = min(sure[at] + tails[at] for at in range(len(spans)))
            found.append(min(shortest + crossing, work / most))
    return max(found) * NS


def whole_step(graph: Graph, machine: Machine, processor: int) -> tuple[Launch, ...]:
    """The launches of a step that one processor computes alone."""
    operators = tuple((node.name, whole(graph, node, processor)) for node in graph.nodes)
    plan = complete(Problem(graph, machine), "whole", operators)
    return StepLaunches(graph, plan, machine, SGD(lr=0.1, momentum=0.9)).program.launches


def _spans(graph: Graph, machine: Machine, launch_ns: float) -> list[_Span]:
    """The launches of a step, in program order; of arrivals and of the fetch one launch, wherever they are."""
    count = len(machine.processors)
    shares = {node.name: _least_share(graph.bound(node).factors, count) for node in graph.nodes}
    kinds = _kinds(machine)
    found = []
    for launches in zip(*(whole_step(graph, machine, processor) for processor in kinds), strict=True):
        name, _, part = launches[0].name.rpartition(".")
        if name in shares or part == "update":
            whole_ns = min(float(task_ns(launch, 0, machine)) for launch in launches)
            least = min(whole_ns, launch_ns + shares.get(name, 0.0) * (whole_ns - launch_ns))
            found.append(_Span(launches[0], whole_ns, least))
        elif part in {"input", "fetch"}:
            found.append(_Span(launches[0], launch_ns, launch_ns))
    replaced = [_replaced_ns(graph, machine, processor) for processor in kinds]
    fused: dict[tuple[str, bool], float] = {}
    for span in found:
        fused[_way(span.launch)] = fused.get(_way(span.launch), 0.0) + span.whole
    return [_or_replaced(span, fused[_way(span.launch)], replaced, launch_ns) for span in found]


def _or_replaced(
    span: _Span, fused: float, replaced: Sequence[Mapping[tuple[str, bool], float]], launch_ns: float
) -> _Span:
    """The span of an operator that may be replaced by primitives: its share of the lesser of their and its time."""
    way = _way(span.launch)
    if way not in replaced[0]:
        return span
    return replace(span, whole=span.whole * min(1.0, *(times[way] / fused for times in replaced)), least=launch_ns)


def _replaced_ns(graph: Graph, machine: Machine, processor: int) -> dict[tuple[str, bool], float]:
    """What the primitives of each operator that has an exchange take, forward and backward, if none of them is cut."""
    split: dict[str, OperatorPlan] = {}
    for node in graph.nodes:
        exchanged = node.operator.exchanges()
        factor = next((f.name for f in graph.bound(node).factors if f.name in exchanged and f.highest_degree > 1), None)
        if factor is not None:
            degrees = tuple((f.name, 2 if f.name == factor else 1) for f in graph.bound(node).factors)
            split[node.name] = OperatorPlan(degrees, (processor, processor))
    if not split:
        return {}
    operators = tuple((node.name, split.get(node.name, whole(graph, node, processor))) for node in graph.nodes)
    made, plan = lowered(graph, complete(Problem(graph, machine), "split", operators), training=True)
    plan = replace(plan, operators=tuple((node.name, whole(made, node, processor)) for node in made.nodes))
    owners = {node.name: node.name.rpartition(".")[0] for node in made.nodes if node.name not in dict(operators)}
    found = {(name, forward): 0.0 for name in split for forward in (True, False)}
    for launch in StepLaunches(made, plan, machine, SGD(lr=0.1, momentum=0.9)).program.launches:
        name, forward = _way(launch)
        if name in owners:
            found[owners[name], forward] += float(task_ns(launch, 0, machine))
    return found


def _way(launch: Launch) -> tuple[str, bool]:
    """The operator of a launch, and whether it is a forward one."""
    name, _, part = launch.name.rpartition(".")
    return name, part == "forward"


def _heads(spans: Sequence[_Span], *, partial: bool) -> list[float]:
    """For each launch the longest chain that ends with it.

    Args:
        spans: the launches.
        partial: whether launches count that write a part of what is read: the last task of the reader waits for them,
            but not every task does.
    """
    ends: dict[int, float] = {}
    found = []
    for span in spans:
        requirements = span.launch.requirements
        begin = max((ends.get(r.region.id, 0.0) for r in requirements if r.privilege.reads), default=0.0)
        found.append(begin + span.least)
        for requirement in requirements:
            written = requirement.privilege.writes or requirement.privilege.reduces
            if written and (partial or requirement.rects[0].volume == requirement.region.bounds.volume):
                region = requirement.region.id
                ends[region] = max(ends.get(region, 0.0), found[-1])
    return found


def _tails(spans: Sequence[_Span]) -> list[float]:
    """For each launch the longest chain that begins when it ends."""
    needed: dict[int, float] = {}
    found = []
    for span in reversed(spans):
        requirements = span.launch.requirements
        writes = [r.region.id for r in requirements if r.privilege.writes or r.privilege.reduces]
        found.append(max((needed.get(region, 0.0) for region in writes), default=0.0))
        for requirement in requirements:
            if requirement.privilege.reads:
                region = requirement.region.id
                needed[region] = max(needed.get(region, 0.0), found[-1] + span.least)
    return found[::-1]


def _kinds(machine: Machine) -> tuple[int, ...]:
    """One processor of each kind that differs in what decides a task's time."""
    found: dict[tuple[float, float, float], int] = {}
    for processor in machine.processors:
        found.setdefault((processor.flops_per_s, processor.launch_s, bandwidth(machine, processor)), processor.id)
    return tuple(found.values())


def _crossing_ns(machine: Machine) -> float:
    """The least time that anything needs from one memory to another; 0 where there is only one."""
    routes, memories = machine.routes, [memory.id for memory in machine.memories]
    ways = [routes.route(one, other) for one in memories for other in memories if one != other]
    return max(1.0, min(sum(routes.rate(link)[0] for link in way) for way in ways) / NS) if ways else 0.0


@lru_cache(maxsize=1024)
def _least_share(factors: tuple[BoundFactor, ...], processors: int) -> float:
    """The share of an operator that its smallest part has, over all ways to cut it into one part for a processor."""
    least = {1: 1.0}
    for factor in factors:
        # By the number of parts so far; every split is one way through.
        found: dict[int, float] = {}
        for parts, share in least.items():
            for degree in range(1, min(factor.highest_degree, processors // parts) + 1):
                smaller = share * ((factor.extent // degree) / factor.extent)
                found[parts * degree] = min(smaller, found.get(parts * degree, 1.0))
        least = found
    return min(least.values())


def _held_together(graph: Graph) -> bool:
    """Whether every operator depends on a tight one, is one, or has one depend on it."""
    wanted = differentiated(graph)
    tight = {node.id for node in graph.nodes if _is_tight(graph, node, wanted)}
    below, above = set(tight), set(tight)
    producers = {
        node.id: {made.id for operand in node.operands if operand is not None and (made := graph.producer(operand))}
        for node in graph.nodes
    }
    for node in graph.nodes:
        if producers[node.id] & below:
            below.add(node.id)
    for node in reversed(graph.nodes):
        if node.id in above:
            above |= producers[node.id]
    return len(below | above) == len(graph.nodes)


def _is_tight(graph: Graph, node: Node, wanted: frozenset[int]) -> bool:
    """Whether every split of an operator makes two processors use one element of a gradient or of a result."""
    bound = graph.bound(node)
    patterns = [
        pattern
        for operand, pattern in zip(node.operands, bound.rule.operands, strict=True)
        if operand is not None and operand in wanted
    ]
    patterns += [
        pattern
        for result, pattern in zip(node.results, bound.rule.results, strict=True)
        if result != graph.loss_tensor and result in wanted
    ]
    factors = [factor.name for factor in bound.factors if factor.highest_degree > 1]
    return all(any(factor not in pattern.factors for pattern in patterns) for factor in factors)
