"""What must cross a link between two memories, and how long a step takes at least because of that.

**Report.** The loss reaches every rank. Take a memory in which it is fetched. Either all that the loss is made of is
computed there, or something on the way there crosses a link, after the task that made it and before the fetch: no
sooner than the shortest chain from an input to the loss.

**Exchange.** Call an operator *tight* if every split of it makes two processors use one element: a factor is missing
from a weight (whose gradient then folds), from an operand with a gradient (likewise), or from a result (whose parts
fold). If a tight operator is on two memories, something crosses. If two operators on different memories need each
other's values, something crosses: if not forward, because what is needed is computed twice, then on the way back, for
gradients are computed once. So if every operator depends on a tight one, or one on it, and not all are in one memory,
something crosses between two launches, or between a gradient and its weight, and some chain goes through both ends.
This is said only of graphs in which parts read operands wholly: a slice, a window that steps over rows, or a
concatenation needs not all that it could be given.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from maniple.operators.graph.differentiation import find_differentiated
from maniple.strategies.bound.launch_chain import shortest_ways
from maniple.strategies.bound.span import NS, regions_written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.rules.pattern import Pattern
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.bound.launch_chain import Ends
    from maniple.strategies.bound.span import Span

__all__: list[str] = []


def crossing_ns(machine: Machine) -> float:
    """The least time that anything needs from one memory to another; 0 where there is only one."""
    routes, memories = machine.routes, [memory.id for memory in machine.memories]
    ways = [routes.route(one, other) for one in memories for other in memories if one != other]
    return max(1, min(int(sum(routes.rate(link)[0] for link in way) / NS) for way in ways)) if ways else 0


def report_ns(spans: Sequence[Span], found: Ends, most: int, crossing: float) -> float:
    """What a step takes at least because the loss reaches every rank.

    Args:
        spans: the launches of the step.
        found: when they end.
        most: the processors of the memory that has most.
        crossing: nanoseconds of a link.
    """
    forward = [at for at, span in enumerate(spans) if span.launch.kind.endswith(".forward")]
    fetch = next(span for span in spans if span.launch.name == "loss.fetch")
    loss = fetch.launch.requirements[0].region.id
    ways = shortest_ways([spans[at] for at in forward], (loss,), inf)
    shortest = min(found.first[at] + way for at, way in zip(forward, ways, strict=True))
    computed = sum(spans[at].work for at in _find_wholly_needed([spans[at] for at in forward], loss, forward)) / most
    return min(shortest + crossing, computed) + fetch.least


def _find_wholly_needed(forward: Sequence[Span], loss: int, places: Sequence[int]) -> list[int]:
    """The places of the forward launches every part of which the loss is made of."""
    wanted = {loss}
    found = []
    for place, span in zip(reversed(places), reversed(forward), strict=True):
        written = regions_written(span.accesses)
        if any(access.requirement.region.id in wanted for access in written if access.uses.wholly):
            found.append(place)
            wanted |= {
                access.requirement.region.id
                for access in span.accesses
                if access.requirement.privilege.reads and access.uses.wholly
            }
    return found


def exchange_ns(graph: Graph, spans: Sequence[Span], found: Ends, most: int, crossing: float) -> float:
    """What a step takes at least because not all can be done apart; 0 where that is not known. See ``report_ns``."""
    if not all(access.uses.wholly and access.uses.least for span in spans for access in span.accesses):
        return 0.0
    if not _held_together(graph):
        return 0.0
    ways = shortest_ways(spans, (), 0.0)
    shortest = min(first + way for first, way in zip(found.first, ways, strict=True))
    return min(shortest + crossing, sum(span.work for span in spans) / most)


def _held_together(graph: Graph) -> bool:
    """Whether every operator depends on a tight one, is one, or has one depend on it."""
    wanted = find_differentiated(graph)
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
    shared: list[tuple[Pattern, str | None]] = [
        (pattern, pattern.joins)
        for operand, pattern in zip(node.operands, bound.rule.operands, strict=True)
        if operand is not None and operand in wanted
    ]
    shared += [
        (pattern, None)
        for result, pattern in zip(node.results, bound.rule.results, strict=True)
        if result != graph.loss_tensor and result in wanted
    ]
    factors = [factor.name for factor in bound.factors if factor.highest_degree > 1]
    return all(any(factor not in (*pattern.factors, joins) for pattern, joins in shared) for factor in factors)
