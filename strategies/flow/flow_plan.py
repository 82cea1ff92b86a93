"""Plans without a flush: the stages that a partition search finds, whose mini-batches follow each other.

Replicas share the samples of each mini-batch, and a stage keeps as many versions of its weights as the rule reads that
was asked for: what the search counts is what runs.
"""

from __future__ import annotations

from dataclasses import replace
from math import fsum
from typing import TYPE_CHECKING

from maniple.operators.graph.graph import Graph
from maniple.operators.pipeline_order.named_order import ASYNCHRONOUS, EARLY, WITHOUT_FLUSH
from maniple.operators.plan.version_semantics import WEIGHTS, check_version_name, version_names, version_rule
from maniple.process.error import RequestError
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.pipeline.operator_costs import costs_by_class
from maniple.strategies.pipeline.stage_costs import Assumptions
from maniple.strategies.pipeline.stage_unit import without_parting
from maniple.strategies.segmentation.finalists import Finalist, load_simulator, micro_batch_counts
from maniple.strategies.segmentation.order_search import stage_times
from maniple.strategies.segmentation.segment import load_compiled
from maniple.strategies.segmentation.stage_plan import staged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.pipeline_order.version_rule import VersionRule
    from maniple.operators.plan.plan import Term
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.interface.strategy import AbstractDirectStrategy
    from maniple.strategies.pipeline.cost_graph import CostGraph
    from maniple.strategies.pipeline.fleet import Fleet
    from maniple.strategies.pipeline.pipeline_timing import StageTimes
    from maniple.strategies.pipeline.problem import Segmentation, SegmentationProblem

__all__: list[str] = []

MOST_STAGES = 8
"""Of up to so many stages, and of all processors, the fewest micro-batches are looked at."""
PREDICTED = "spectrain"
"""A rule that every strategy without a flush knows."""


def load_flows(strategy: AbstractDirectStrategy) -> None:
    """Compile what simulates runs without a flush, or load it: the strategy plans the smallest pipeline that moves."""
    load_compiled()
    load_simulator()
    graph = Graph("smallest")
    x, y = graph.input("x", (2, 2)), graph.input("y", (2,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, 2)), 2), y))
    strategy.plan(Problem(graph, Machine.cpu(2, ranks=2), weights=PREDICTED))


def asked_rule(problem: Problem, strategy: str) -> VersionRule:
    """The rule of versions that a problem asks for.

    Raises:
        RequestError: it asks for none, or for turns that such a pipeline does not take.
    """
    if problem.weights is None:
        raise RequestError(
            f"strategy {strategy!r} has no flush, which changes results: say which weights are read by semantics "
            f"{WEIGHTS}=RULE, one of {', '.join(version_names())}; or ask antichain, which has one"
        )
    check_version_name(problem.weights)
    rule = version_rule({WEIGHTS: problem.weights})
    assert rule is not None  # noqa: S101  (it has the key)
    orders = WITHOUT_FLUSH if rule.adds else (ASYNCHRONOUS,)
    if problem.order not in {None, *orders} or (problem.micro_batches not in {None, 1} and not rule.adds):
        expected = " or ".join(map(repr, orders)) + ("" if rule.adds else " and 1 micro-batch")
        raise RequestError(
            f"strategy {strategy!r} has mini-batches follow each other, order {expected}; got "
            f"{problem.order!r} and {problem.micro_batches}"
        )
    return rule


def flow_parts(problem: Problem, rule: VersionRule) -> tuple[int, ...]:
    """The numbers of micro-batches to look at: 1, where the rule does not add their gradients up.

    Each starts all tasks once more, so the fewest that so many stages can have are among them, which is one each, and
    one more than that, the fewest that the early order can hide transfers with.
    """
    if not rule.adds:
        return (1,)
    found = {parts for parts in micro_batch_counts(problem) if parts > 1}
    if problem.micro_batches is None:
        count = len(problem.machine.processors)
        fewest = {*range(2, min(count, MOST_STAGES) + 2), count + 1}
        found |= {parts for parts in fewest if parts <= problem.graph.batch}
    return tuple(sorted(found))


def flow_orders(problem: Problem, rule: VersionRule, parts: int, stages: int) -> tuple[str, ...]:
    """The orders to look at: the one asked for; else early, too, where there are more micro-batches than stages."""
    if problem.order is not None:
        return (problem.order,)
    return WITHOUT_FLUSH if rule.adds and parts > stages else (ASYNCHRONOUS,)


def flow_costs(
    problem: Problem, strategy: str, times: CostModel | None, fleet: Fleet, parts: int = 1
) -> tuple[CostGraph, ...]:
    """What stages are made of, on a processor of each class of a fleet.

    Args:
        problem: the graph and the machine.
        strategy: who asks.
        times: of tasks; by default the roofline.
        fleet: the processors.
        parts: how many micro-batches there are.

    Raises:
        RequestError: nothing can be cut.
    """
    graph = problem.graph
    found = tuple(without_parting(graph, own) for own in costs_by_class(graph, problem.machine, fleet, times, parts))
    if len(found[0].nodes) < 2:
        raise RequestError(
            f"strategy {strategy!r}: expected operators that stages can part; all of {problem.graph.name} are between "
            "two that read one weight, as tied weights at both ends are, and without a flush stages have versions of "
            "weights of their own: ask antichain, which has one"
        )
    return found


def flow_assumptions(rule: VersionRule, parts: int = 1) -> Assumptions:
    """What a partition search takes for granted: versions and what is in flight are those that run."""
    return Assumptions(order="asynchronous", rule=rule, micro_batches=parts)


def flow_finalist(
    problem: Problem,
    strategy: str,
    asked: SegmentationProblem,
    found: Segmentation,
    rule: VersionRule,
    times: Sequence[StageTimes] = (),
    order: str = ASYNCHRONOUS,
) -> Finalist:
    """A pipeline whose mini-batches follow each other.

    What it is expected to take is what its slowest stage does, or what a micro-batch takes there and back, by how many
    are under way meanwhile.

    Args:
        problem: the graph and the machine.
        strategy: name of the strategy that found it.
        asked: the partition search's problem.
        found: the pipeline.
        rule: which versions of weights are read.
        times: what a micro-batch takes in each stage; by default on equal processors.
        order: in which stages take turns.
    """
    plan, count = staged(problem, strategy, asked, found), len(found.stages)
    parts = asked.assumptions.micro_batches
    replicas = " ".join(str(stage.replicas) for stage in found.stages)
    told: tuple[tuple[str, Term], ...] = (
        ("pipeline order", order),
        *((("micro-batches", parts),) if rule.adds else ()),
        ("stages", count),
        ("processors of stages", replicas),
        ("bottleneck_s", found.bottleneck_s),
        ("partition_s", found.value_s),
        ("exact", found.exact),
        ("states", found.states),
    )
    name = f"{rule.name}, {count} stages on {replicas} processors"
    name += f", {parts} micro-batches" if rule.adds else ""
    name += ", early" if order == EARLY else ""
    flowing = plan.with_pipeline(order=order, micro_batches=parts)
    times = times or stage_times(asked, found)
    bound_s = parts * max(each.both_s for each in times)
    turns = replace(rule, early=order == EARLY)
    trip_s = max(
        parts * _trip_s(times[stage:]) / max(1, turns.ahead(stage, count, parts) + (not rule.adds))
        for stage in range(count)
    )
    expected_s = max(bound_s, found.bottleneck_s, trip_s)
    return Finalist(name, replace(flowing, semantics=((WEIGHTS, rule.name),)), expected_s, bound_s, told)


def _trip_s(times: Sequence[StageTimes]) -> float:
    """What a micro-batch takes from the first of some stages to the last, and back."""
    return fsum(each.both_s + 2 * each.transfer_s for each in times)
