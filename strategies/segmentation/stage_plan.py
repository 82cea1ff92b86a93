"""A pipeline of an operator graph as a plan: every stage on processors of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from maniple.operators.plan.plan import StagePlan
from maniple.process.error import RequestError
from maniple.strategies.interface.placement import complete, shared
from maniple.strategies.pipeline.pipeline_timing import RUNS_AS
from maniple.strategies.segmentation.pipeline_text import ids

if TYPE_CHECKING:
    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import OperatorPlan, Plan, Term
    from maniple.strategies.interface.strategy import Problem
    from maniple.strategies.pipeline.cost_graph import CostGraph
    from maniple.strategies.pipeline.problem import Segmentation
    from maniple.strategies.pipeline.stage_costs import Assumptions

__all__: list[str] = []


def plan_of(problem: Problem, strategy: str, costs: CostGraph, found: Segmentation, given: Assumptions) -> Plan:
    """The plan that places every operator of a pipeline's stage on the stage's processors.

    Stages take turns with micro-batches in the order for which they were chosen, and the replicas of a stage split the
    samples of each. Where a graph cannot run so, as with exact batch normalization within a stage, the mini-batch runs
    whole, and the explanation says why.

    Args:
        problem: the graph and the machine.
        strategy: name of the strategy that found the pipeline.
        costs: the graph of costs that was cut, whose nodes are operators with those beside them.
        found: the pipeline.
        given: what was assumed.
    """
    graph = problem.graph
    operators: dict[str, OperatorPlan] = {}
    stages: list[StagePlan] = []
    reasons: list[tuple[str, tuple[tuple[str, Term], ...]]] = []
    for number, stage in enumerate(found.stages):
        names = ids(costs, stage.nodes)
        operators |= {name: shared(graph, graph.node(name), stage.devices) for name in names}
        inside = set(names)
        stages.append(StagePlan(tuple(node.name for node in graph.nodes if node.name in inside)))
        reasons += [(name, (("stage", number), ("stage_load_s", stage.load_s))) for name in names]
    terms: tuple[tuple[str, Term], ...] = (
        ("pipeline order", given.order),
        ("micro-batches", given.micro_batches),
        ("stages", len(found.stages)),
        ("bottleneck_s", found.bottleneck_s),
        ("predicted_s", found.value_s),
        ("lower_bound_s", found.lower_bound_s),
        ("exact", found.exact),
        ("states", found.states),
    )
    ordered = tuple((node.name, operators[node.name]) for node in graph.nodes)
    explained = dict(reasons)
    explanation = tuple((node.name, explained[node.name]) for node in graph.nodes)
    plan = replace(complete(problem, strategy, ordered, (*explanation, ("", terms))), stages=tuple(stages))
    pipelined, refusal = _in_turn(plan, graph, given)
    runs: Term = "the mini-batch whole: " + refusal
    if pipelined.pipeline is not None:
        runs = f"{pipelined.pipeline.order}, {pipelined.pipeline.micro_batches} micro-batches"
    return replace(pipelined, explanation=(*explanation, ("", (*terms, ("runs", runs)))))


def _in_turn(plan: Plan, graph: Graph, given: Assumptions) -> tuple[Plan, str]:
    """The plan as a pipeline of its stages; or as it is, and why."""
    if len(plan.stages) == 1 or given.micro_batches == 1:
        return plan, "one stage" if len(plan.stages) == 1 else "one micro-batch"
    if given.order not in RUNS_AS:
        return plan, f"order {given.order} has no flush"
    from maniple.operators.lowering.script import check_turns  # lowering, which most do without

    made = plan.with_pipeline(order=RUNS_AS[given.order], micro_batches=given.micro_batches)
    try:
        check_turns(graph, made)
    except RequestError as error:
        return plan, str(error).splitlines()[-1].strip()
    return made, ""
