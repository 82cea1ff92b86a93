"""Runoffs of frontiers: which points are still trades, once the tasks of all were timed side by side.

A point of a frontier needs more memory than another because it takes less time. Whether it does, the tasks of all of
them say that are timed again, in turn. Beginning with the leanest, a point stays if the one before it that stays is
slower: in all passes, or all but one (see `runoff`). Else more memory buys nothing that can be told from the noise.

    memory    searched with   side by side   passes
    1 GiB     40.0 ms         41.0 ms        48.0 41.0 41.5 40.6 40.9    the leanest: stays
    2 GiB     39.0 ms         41.1 ms        47.0 41.4 41.1 40.5 41.2    the first is not slower: goes
    3 GiB     30.0 ms         31.0 ms        38.0 31.0 31.2 30.8 30.9    the first is slower: stays
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from maniple.operators.plan.plan import Predicted
from maniple.strategies.search.runoff import slower
from maniple.strategies.simulation.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.operators.plan.plan import Plan
    from maniple.strategies.cost_model.cost_model import CostModel, Repeated
    from maniple.strategies.interface.plan_frontier import Frontier, FrontierPoint
    from maniple.strategies.interface.strategy import Problem

__all__: list[str] = []


def settle(problem: Problem, found: Frontier, side_by_side: Callable[[Sequence[Plan]], Repeated | None]) -> Frontier:
    """What a search gives: its frontier, or those of its points that are trades by what their tasks take side by side.

    Args:
        problem: what was searched.
        found: its frontier.
        side_by_side: times the tasks of plans; None: nothing is timed here.
    """
    try:
        again = side_by_side([point.plan for point in found]) if len(found) > 1 else None
        return found if again is None else decide_frontier(problem, again, found)
    except KeyboardInterrupt:
        return found


def decide_frontier(problem: Problem, costs: Repeated, found: Frontier) -> Frontier:
    """The points of a frontier that are trades by what their tasks take side by side, with these times.

    Args:
        problem: what was searched.
        costs: what the tasks of all points take, side by side.
        found: the frontier, by what they took before.
    """
    kept: list[FrontierPoint] = []
    passes: list[list[int]] = []
    for point in sorted(found, key=lambda point: (point.peak_memory_bytes, -point.step_s)):
        mine = [_makespan_ns(problem, point, once) for once in costs.passes]
        if all(slower(other, mine) for other in passes):
            passes.append(mine)
            kept.append(_timed(problem, costs, point))
    return replace(found, points=tuple(kept))


def _makespan_ns(problem: Problem, point: FrontierPoint, costs: CostModel) -> int:
    return Simulation(problem.graph, problem.machine, point.plan, costs, problem.optimizer).makespan_ns


def _timed(problem: Problem, costs: Repeated, point: FrontierPoint) -> FrontierPoint:
    """The point with the time that its tasks take side by side."""
    step_s = _makespan_ns(problem, point, costs.middle) / 1e9
    predicted = point.plan.predicted
    plan = replace(point.plan, predicted=Predicted(step_s, predicted.memory_bytes, predicted.bytes))
    return replace(point, step_s=step_s, plan=plan)
