"""Segmentation: the entrance to all searches."""

from __future__ import annotations

from maniple.strategies.pipeline.cost_graph import CostGraph, CostNode
from maniple.strategies.pipeline.problem import Goal, Segmentation, SegmentationProblem
from maniple.strategies.pipeline.stage_costs import Assumptions, Level
from maniple.strategies.segmentation.latency import fill_s, latency
from maniple.strategies.segmentation.pipeline_cost import stages
from maniple.strategies.segmentation.pipeline_space import NodeCosts
from maniple.strategies.segmentation.throughput import throughput

__all__: list[str] = []


def load_compiled() -> None:
    """Load the compiled searches, so that a time taken afterwards is that of a search alone."""
    nodes = [CostNode(name, "", 1.0, 1.0, 1, 1, 1) for name in ("a", "b")]
    graph = CostGraph.of("two nodes", nodes, [("a", "b")])
    flat, levels = (Level(2, 1.0),), (Level(2, 1.0), Level(2, 1.0))
    held = Assumptions(order="gpipe", synchronization="overlap")
    trials: tuple[tuple[Goal, tuple[Level, ...], Assumptions], ...] = (
        ("throughput", flat, Assumptions()),
        ("throughput", flat, held),
        ("throughput", levels, Assumptions()),
        ("latency", flat, held),
    )
    for goal, machine, given in trials:
        segment(SegmentationProblem(graph, machine, True, None, goal, given))


def segment(problem: SegmentationProblem) -> Segmentation:
    """The best pipeline for a problem, or a good one with a bound where the best is out of reach.

    Raises:
        RequestError: no pipeline keeps the memory limit, or the goal is not to be had on this machine.
    """
    costs = NodeCosts.of(problem)
    answer = throughput(problem, costs) if problem.goal == "throughput" else latency(problem, costs)
    found = stages(problem, answer.parts)
    bottleneck = max(stage.load_s for stage in found)
    value = bottleneck if problem.goal == "throughput" else fill_s(problem, answer.parts)
    exact = answer.ticks <= answer.bound
    bound = value if exact else min(value, costs.clock.seconds(answer.bound))
    return Segmentation(found, bottleneck, bound, exact, answer.states, value)
