"""A pipeline of an operator graph as a plan: every stage on processors of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from maniple.operators.pipeline_order.named_order import ORDERS
from maniple.operators.plan.plan import StagePlan
from maniple.strategies.interface.placement import complete, shared
from maniple.strategies.pipeline.pipeline_timing import RUNS_AS, StageTimes, pipeline_s
from maniple.strategies.segmentation.finalists import Finalist
from maniple.strategies.segmentation.order_search import stage_times
from maniple.strategies.segmentation.pipeline_text import ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.plan.plan import OperatorPlan, Plan, Term
    from maniple.strategies.interface.strategy import Problem
    from maniple.strategies.pipeline.problem import Segmentation, SegmentationProblem
    from maniple.strategies.pipeline.stage_costs import Order

__all__: list[str] = []


def staged(problem: Problem, strategy: str, asked: SegmentationProblem, found: Segmentation) -> Plan:
    """The plan that places every operator of a pipeline's stage on the stage's processors, which share its samples.

    Its stages take no turns yet: each works on the whole mini-batch.

    Args:
        problem: the graph and the machine.
        strategy: name of the strategy that found the pipeline.
        asked: the partition search's problem, whose nodes are operators with those beside them.
        found: the pipeline.
    """
    graph = problem.graph
    operators: dict[str, OperatorPlan] = {}
    stages: list[StagePlan] = []
    reasons: dict[str, tuple[tuple[str, Term], ...]] = {}
    for number, stage in enumerate(found.stages):
        names = ids(asked.graph, stage.nodes)
        operators |= {name: shared(graph, graph.node(name), stage.devices) for name in names}
        inside = set(names)
        stages.append(StagePlan(tuple(node.name for node in graph.nodes if node.name in inside)))
        reasons |= dict.fromkeys(names, (("stage", number), ("stage_load_s", stage.load_s)))
    ordered = tuple((node.name, operators[node.name]) for node in graph.nodes)
    explanation = tuple((node.name, reasons[node.name]) for node in graph.nodes)
    return replace(complete(problem, strategy, ordered, explanation), stages=tuple(stages))


def finalist(
    problem: Problem,
    strategy: str,
    asked: SegmentationProblem,
    found: Segmentation,
    order: str = "",
    times: Sequence[StageTimes] = (),
) -> Finalist:
    """A pipeline in its order.

    Args:
        problem: the graph and the machine.
        strategy: name of the strategy that found it.
        asked: the partition search's problem.
        found: the pipeline.
        order: in which stages take turns, by name or as text; by default the one that was assumed.
        times: what a micro-batch takes in each stage; by default on equal processors.
    """
    given, plan = asked.assumptions, staged(problem, strategy, asked, found)
    runs, count, parts = order or RUNS_AS[given.order], len(found.stages), given.micro_batches
    times = times or stage_times(asked, found)
    bound_s = parts * max(each.both_s for each in times)  # the processor of some stage computes for so long
    shown = runs if runs in ORDERS else "an order written out"
    told: tuple[tuple[str, Term], ...] = (
        ("pipeline order", shown),
        ("micro-batches", parts),
        ("stages", count),
        ("bottleneck_s", found.bottleneck_s),
        ("bound_s", bound_s),
        ("partition_s", found.value_s),
        ("exact", found.exact),
        ("states", found.states),
    )
    return Finalist(
        f"{shown}, {count} stage{'s' * (count > 1)}, {parts} micro-batch{'es' * (parts > 1)}",
        plan.with_pipeline(order=runs, micro_batches=parts),
        pipeline_s(times, given.order, parts, given.transfers),
        bound_s,
        told,
        asked.graph.uncounted,
    )


def assumed(order: str) -> Order:
    """What a partition search takes for granted of an order: when passes go, and how many micro-batches are held."""
    known: dict[str, Order] = {"gpipe": "gpipe", "early_backward": "1f1b-so"}
    return known.get(order, "1f1b")
