"""Alternations: samples over groups of neighbours, within which products are cut by turns: by feature, and by sum.

A product of a hidden layer is cut by feature, whatever follows lies as it does, and the product that reads it is cut
along what it adds up, so nothing moves between the two; a table of words is cut by word (M. Shoeybi et al., Megatron,
arXiv 1909.08053, section 3). What is between such pairs, norms and shortcuts, is cut along a sequence (V. Korthikanti
et al., Reducing Activation Recomputation in Large Transformer Models, arXiv 2205.05198, section 4.2). So a weight lies
in as many parts as a group has processors, of which each is synchronised by the processors of one number in all groups,
and activations move within groups. Where there are more groups than samples, several share one by its positions.

    2 samples, 2 groups of 2  degrees  on 8 processors  a member of a group has
    layer_norm                b=2 s=2  b=2 s=4          half of the positions
    linear, up                b=2 n=2  b=2 s=2 n=2      half of the features
    relu                      b=2 c=2  b=2 s=2 c=2      the same half
    linear, down              b=2 k=2  b=2 s=2 k=2      contributions of its half to all features
    add                       b=2 s=2  b=2 s=4          half of the positions, of all features
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.plan.plan import OperatorPlan
from maniple.strategies.interface.layer import weights_of
from maniple.strategies.interface.placement import complete, split_sample
from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem
from maniple.strategies.soap.hybrid import processors_of_hosts

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.plan.plan import Plan
    from maniple.operators.rules.bound_rule import BoundFactor, BoundRule

__all__: list[str] = []


@final
class Alternation(AbstractDirectStrategy):
    """Cuts products by turns along what they give and what they add up, within groups of neighbours.

    Args:
        size: how many processors a group has; it divides the machine's.
    """

    name: ClassVar[str] = "alternation"

    def __init__(self, size: int) -> None:
        self._size = size

    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem."""
        graph, count = problem.graph, len(problem.machine.processors)
        lies = dict[int | None, int]()  # along which axis members of a group share a tensor
        operators = []
        for node in graph.nodes:
            bound = graph.bound(node)
            shared = self._shared(graph, node, lies.get(node.operands[0]))
            degrees = self._degrees(bound, shared, count // self._size)
            own = _placed(bound, degrees, count) if degrees else split_sample(graph, node, problem.machine)
            operators.append((node.name, own))
            for result, pattern in zip(node.results, bound.rule.results, strict=True):
                cuts = bound.cuts(pattern)
                if shared is not None and degrees and shared.name in cuts:
                    lies[result] = cuts.index(shared.name)
        return complete(problem, self.name, tuple(operators))

    def _shared(self, graph: Graph, node: Node, axis: int | None) -> BoundFactor | None:
        """The factor along which a group shares an operator; None: it shares positions.

        Args:
            graph: the graph.
            node: the operator.
            axis: the dimension along which its first operand is shared, if it is.
        """
        bound = graph.bound(node)
        read = bound.cuts(bound.rule.operands[0]) if bound.rule.operands else ()
        names = [] if axis is None else [read[axis]]
        if weights_of(graph, node) and not bound.rule.windows:
            names += [factor.name for factor in bound.rule.factors if factor.gathered]
            names += [factor.name for factor in bound.factors if factor.role == "parameter" and factor.name not in read]
        found = (bound.factor(name) for name in names if name is not None)
        return next((factor for factor in found if factor.highest_degree >= self._size), None)

    def _degrees(self, bound: BoundRule, shared: BoundFactor | None, groups: int) -> dict[str, int]:
        """The degrees of an operator; none where neither samples nor positions are enough for the groups."""
        samples = next((one for one in bound.factors if one.role == "sample" and one.splittable), None)
        most = 1 if samples is None else samples.highest_degree
        cut = next(degree for degree in range(min(groups, most), 0, -1) if groups % degree == 0)
        rest = groups // cut * (1 if shared is not None else self._size)
        others = [one for one in bound.factors if one.role == "attribute" and one is not shared]
        positions = next((one for one in others if one.highest_degree >= rest), None)
        if samples is None or (cut < groups and positions is None):
            return {}
        found = {samples.name: cut}
        if positions is not None and rest > 1:
            found[positions.name] = rest
        return found if shared is None else found | {shared.name: self._size}


def _placed(bound: BoundRule, degrees: dict[str, int], count: int) -> OperatorPlan:
    """The configuration of some degrees, on processors that are as far apart as they can be."""
    full = tuple((factor.name, degrees.get(factor.name, 1)) for factor in bound.factors)
    points = prod(degree for _, degree in full)
    return OperatorPlan(full, tuple(point * (count // points) for point in range(points)))


def alternations(problem: Problem) -> tuple[Alternation, ...]:
    """Those whose groups are hosts, halves of hosts and so on, of several hosts of equally many processors.

    Only graphs have them in which a product with weights reads what a product along a factor of weights gives.
    """
    size, found = processors_of_hosts(problem.machine), list[Alternation]()
    while size > 1:
        one = Alternation(size)
        plan = one.plan(problem)
        if any(_adds_up(problem.graph, node, plan.operator(node.name)) for node in problem.graph.nodes):
            found.append(one)
        size = size // 2 if size % 2 == 0 else 1
    return tuple(found)


def _adds_up(graph: Graph, node: Node, own: OperatorPlan) -> bool:
    """Whether an operator with weights is cut along what it adds up, and looks nothing up."""
    looked_up = [factor.name for factor in graph.bound(node).rule.factors if factor.gathered]
    reduced = [one.name for one in graph.bound(node).factors if one.reduction and one.name not in looked_up]
    return bool(weights_of(graph, node)) and any(own.degree(name) > 1 for name in reduced)
