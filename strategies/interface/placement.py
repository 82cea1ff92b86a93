"""How a strategy's wish becomes the configuration of an operator, and configurations become a plan."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING

from maniple.operators.plan.plan import OperatorPlan, Plan, Term
from maniple.operators.plan.weight_home import default_homes
from maniple.process.error import RequestError, nearest
from maniple.strategies.interface.strategy import StrategyError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.operators.graph.graph import Graph, Node
    from maniple.operators.rules.pattern import Pattern
    from maniple.operators.rules.rule import BoundRule
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.interface.strategy import Problem

__all__: list[str] = []

Explanation = tuple[tuple[str, tuple[tuple[str, Term], ...]], ...]

_FOLLOWERS = ("add", "avg_pool2d", "max_pool2d", "relu")
_POINTWISE = ("add", "relu")


def configure(graph: Graph, node: Node, degrees: Mapping[str, int], machine: Machine) -> OperatorPlan:
    """The configuration of an operator with some degrees, the others 1, its points spread over all processors.

    With as many points as processors, point i runs on processor i; with fewer, on the first ones; with more, every
    processor runs a contiguous block of points.

    Args:
        graph: the graph.
        node: the operator.
        degrees: degree of each factor that is split.
        machine: the machine.

    Raises:
        RequestError: the operator has no such factor.
    """
    factors = [factor.name for factor in graph.bound(node).factors]
    for name in degrees:
        if name not in factors:
            raise RequestError(f"operator {node.name}: there is no factor {name!r}; the factors are {factors}")
    full = tuple((factor, degrees.get(factor, 1)) for factor in factors)
    points, count = prod(degree for _, degree in full), len(machine.processors)
    return OperatorPlan(full, tuple(point * min(points, count) // points for point in range(points)))


def whole(graph: Graph, node: Node, processor: int) -> OperatorPlan:
    """The configuration of an operator that one processor computes alone."""
    return OperatorPlan(tuple((factor.name, 1) for factor in graph.bound(node).factors), (processor,))


def split_axis(graph: Graph, node: Node, axis: int, machine: Machine) -> OperatorPlan:
    """The configuration that cuts one dimension of the operator's result over all processors.

    The degree is the number of processors, or the factor's extent if that is smaller. A dimension that must stay
    whole stays whole, on processor 0.
    """
    bound = graph.bound(node)
    return _split(graph, node, bound.cuts(bound.rule.results[0])[axis], machine)


def split_sample(graph: Graph, node: Node, machine: Machine) -> OperatorPlan:
    """The configuration that splits the sample factor over all processors, or as many as there are samples.

    An operator without a sample factor that can be split stays whole on processor 0.
    """
    factors = graph.bound(node).factors
    return _split(graph, node, next((factor.name for factor in factors if factor.role == "sample"), None), machine)


def shared(graph: Graph, node: Node, processors: Sequence[int], features: int = 1) -> OperatorPlan:
    """The configuration of an operator whose samples some processors share, as far as they can be split.

    Args:
        graph: the graph.
        node: the operator.
        processors: who shares.
        features: where the operator's output features can be split so often, neighbours share those, and the others
            samples; it divides the number of processors.
    """
    bound = graph.bound(node)
    sample = next((factor for factor in bound.factors if factor.role == "sample" and factor.splittable), None)
    feature = next((factor for factor in bound.factors if factor.role == "parameter" and not factor.reduction), None)
    if features == 1 or feature is None or feature.highest_degree < features:
        feature, features = None, 1
    most = len(processors) // features
    points = 1 if sample is None else min(most, sample.extent)
    if points * features == 1:
        return whole(graph, node, processors[0])
    cut = {factor.name: degree for factor, degree in ((sample, points), (feature, features)) if factor is not None}
    degrees = tuple((factor.name, cut.get(factor.name, 1)) for factor in bound.factors)
    return OperatorPlan(degrees, tuple(processors[: points * features]))


def is_pointwise(node: Node) -> bool:
    """Whether the operator computes each element of its result from the same element of its operands."""
    return node.operator.name in _POINTWISE


def follow(graph: Graph, node: Node, operators: Mapping[str, OperatorPlan]) -> OperatorPlan | None:
    """The configuration that cuts a pointwise operator or a pool exactly as its producer's result is cut.

    linear        n=2  [:, 0:5] p0  [:, 5:10] p1
    relu follows  n=2  [:, 0:5] p0  [:, 5:10] p1

    Args:
        graph: the graph.
        node: the operator; the producer of its first operand is followed.
        operators: the configurations found so far, by operator name.

    Returns:
        The configuration, or None where the operator may not be cut like that or no operator makes its operand.
    """
    producer = next((other for other in graph.nodes if other.results[0] == node.operands[0]), None)
    if node.operator.name not in _FOLLOWERS or producer is None or producer.name not in operators:
        return None
    wanted = operators[producer.name]
    bound, made = graph.bound(node), graph.bound(producer)
    cuts = _factors(made, made.rule.results[0])
    # The consumer's factor on each dimension of the tensor between the two, with the producer's degree there.
    mine = _factors(bound, bound.rule.operands[0])
    if mine is None or cuts is None:
        return None
    degrees = {factor: wanted.degree(cut) for factor, cut in zip(mine, cuts, strict=True)}
    if any(degree > 1 and degree > bound.factor(factor).highest_degree for factor, degree in degrees.items()):
        return None
    full = tuple((factor.name, degrees.get(factor.name, 1)) for factor in bound.factors)
    places = [[name for name, _ in full].index(factor) for factor in mine]
    grid = _grid(made, wanted, cuts)
    processors = [
        processor
        for index in product(*(range(degree) for _, degree in full))
        for processor in grid[tuple(index[place] for place in places)]
    ]
    return OperatorPlan(full, tuple(processors), wanted.replicas)


def node_flops(graph: Graph, node: Node) -> int:
    """The floating-point operations of one step of an operator, forward and backward, when it is not split."""
    bound = graph.bound(node)
    tiles = bound.tiles({factor.name: 1 for factor in bound.factors})
    costs = [node.operator.flops(tile) for tile in tiles]
    return sum(cost.forward + cost.backward for cost in costs)


def complete(
    problem: Problem, strategy: str, operators: tuple[tuple[str, OperatorPlan], ...], explanation: Explanation = ()
) -> Plan:
    """The plan of some configurations, with the default home for every weight.

    Args:
        problem: the problem.
        strategy: name of the strategy that found the configurations.
        operators: (name, configuration) for every operator of the graph, in its order.
        explanation: why.

    Raises:
        StrategyError: an operator has no configuration, or something else in its place, or there is one too many.
    """
    graph, machine = problem.graph, problem.machine
    _check_operators(graph, strategy, operators)
    return Plan(
        graph=graph.fingerprint(),
        machine=machine.fingerprint(),
        operators=operators,
        weights=default_homes(graph, operators, machine, problem.optimizer),
        strategy=strategy,
        explanation=explanation,
    )


def _check_operators(graph: Graph, strategy: str, operators: tuple[tuple[str, OperatorPlan], ...]) -> None:
    wanted, found = [node.name for node in graph.nodes], dict(operators)
    for name, configuration in found.items():
        if name not in wanted:
            raise StrategyError(f"strategy {strategy!r}: the graph has no operator {name!r}{nearest(name, wanted)}")
        if not isinstance(configuration, OperatorPlan):
            kind = type(configuration).__name__
            raise StrategyError(
                f"strategy {strategy!r}: operator {name!r}: expected an OperatorPlan, as configure() gives, got a "
                f"value of type {kind}"
            )
    for name in wanted:
        if name not in found:
            raise StrategyError(
                f"strategy {strategy!r}: operator {name!r} has no configuration; complete() needs one for every node "
                "of problem.graph.nodes; whole(graph, node, 0) leaves one as it is"
            )


def _split(graph: Graph, node: Node, factor: str | None, machine: Machine) -> OperatorPlan:
    for candidate in graph.bound(node).factors:
        if candidate.name == factor and candidate.splittable:
            degree = max(1, min(len(machine.processors), candidate.extent))
            return configure(graph, node, {candidate.name: degree}, machine)
    return whole(graph, node, 0)


def _factors(bound: BoundRule, pattern: Pattern) -> tuple[str, ...] | None:
    """The factor that cuts each dimension, where every dimension has one."""
    cuts = bound.cuts(pattern)
    named = tuple(cut for cut in cuts if cut is not None)
    return named if len(named) == len(cuts) else None


def _grid(bound: BoundRule, plan: OperatorPlan, cuts: Sequence[str]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The processors of each tile of the result, by the tile's place along every dimension.

    Where several points contribute to one tile, the first of them stands for it.
    """
    names = [factor.name for factor in bound.factors]
    places = [names.index(cut) for cut in cuts]
    grid: dict[tuple[int, ...], tuple[int, ...]] = {}
    for point, index in enumerate(product(*(range(degree) for _, degree in plan.degrees))):
        grid.setdefault(tuple(index[place] for place in places), plan.of_point(point))
    return grid
