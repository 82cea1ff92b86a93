"""Segmentation: the entrance to all searches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.strategies.segmentation.evaluation import stages
from maniple.strategies.segmentation.latency import fill_s, latency
from maniple.strategies.segmentation.problem import Segmentation
from maniple.strategies.segmentation.space import NodeCosts
from maniple.strategies.segmentation.throughput import throughput

if TYPE_CHECKING:
    from maniple.strategies.segmentation.problem import SegmentationProblem

__all__: list[str] = []


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
