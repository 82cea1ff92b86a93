"""How a search ends where tasks are timed here: its plan, or one that comes near, by what they take side by side.

where                                              what decides
ranks that were launched, and are the machine      whole steps of the plans, run in turn (`plan_race`)
anywhere else                                      their tasks, timed in turn (`strategies.search.runoff`)
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Any

from maniple.found_plans import PARETO, Found
from maniple.process import environment
from maniple.search_limits import RACERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.costs import Costs
    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.machine.machine import Machine
    from maniple.search_limits import Limits
    from maniple.strategies.interface.plan_frontier import Frontier
    from maniple.strategies.interface.strategy import AbstractStrategy, Problem

__all__: list[str] = []

RACED_S_OF = "raced_s of "
"""How terms of explanations begin that tell what a strategy's plan took on the processors."""


def can_race(machine: Machine, costs: Costs) -> bool:
    """Whether costs are timed and this program's ranks are the machine, so that steps can be run; every rank must ask.

    Args:
        machine: what plans are for.
        costs: what tells what tasks take.
    """
    if not costs.timing or not environment.is_launched():
        return False
    from maniple.runtime.control import world
    from maniple.runtime.machine.world_machine import host_machine

    there = [(one.id, one.kind, one.cores) for one in host_machine(world.current()).processors]
    return len(there) > 1 and [(one.id, one.kind, one.cores) for one in machine.processors] == there


def races_compiled() -> bool:
    """Whether torch compiles what the steps of a race run, as it does what this program's trainers run.

    Raises:
        RequestError: the program was told so, and torch has no compiler here.
    """
    from maniple.runtime.control import world
    from maniple.torch_compilation import checked_compilation

    return checked_compilation(None, world.current())


def settle(
    strategy: AbstractStrategy[Any], state: object, problem: Problem, costs: Costs | None, limits: Limits
) -> Found:
    """What a search gives: its plan or one that comes near, by what tasks take side by side; or who is to race.

    Args:
        strategy: what searched.
        state: its last state.
        problem: what was searched.
        costs: what tells what tasks take; None: the user has no patience for more.
        limits: how long that may take, and whether steps of plans can be run.
    """
    if problem.objective == PARETO:
        return Found(_settle_frontier(strategy.frontier(state), problem, costs, limits))
    result = strategy.result(state)
    if costs is None or not costs.timing:
        return Found(result)
    from maniple.strategies.search.runoff import decide, finalists, rivals

    try:
        alternatives = strategy.alternatives(state)
        if limits.races:
            return Found(result, rivals(problem, (*alternatives, result), RACERS) if alternatives else ())
        plans = finalists(problem, (*alternatives, result)) if alternatives else ()
        again = costs.side_by_side(plans, limits.until(1.0)) if len(plans) > 1 else None
        return Found(result if again is None else decide(problem, again, result, plans))
    except KeyboardInterrupt:
        return Found(result)


def _settle_frontier(found: Frontier, problem: Problem, costs: Costs | None, limits: Limits) -> Frontier:
    """A frontier, or those of its points that are trades by what their tasks take side by side."""
    if costs is None or not costs.timing:
        return found
    from maniple.strategies.search import frontier_runoff

    return frontier_runoff.settle(problem, found, lambda plans: costs.side_by_side(plans, limits.until(1.0)))


def race_off(
    result: Plan, plans: Sequence[Plan], graph: Graph, optimizer: AbstractOptimizer | None, limits: Limits
) -> Plan:
    """What a search gives: the plan that wins the race, and how it went.

    Args:
        result: what was found by simulation.
        plans: those that race, data parallelism first, as they are simulated.
        graph: theirs.
        optimizer: what updates the weights; None: descent with momentum.
        limits: of the search, on rank 0.
    """
    from maniple.plan_race import Racer, race, winner
    from maniple.runtime.control import world
    from maniple.strategies.search.runoff import STEP_S_OF, retold

    here = world.current()
    racers = [Racer(plan.strategy, plan, plan.predicted.step_s or math.inf) for plan in plans]
    left = lambda: limits.until(1.0) if here.rank == 0 else math.inf  # noqa: E731
    times = race(graph, racers, optimizer, here, left, compiled=limits.compiles)
    number = winner(racers, times)
    terms: dict[str, int | float | str] = {"found by": racers[number].name, "rounds": len(times[0])}
    terms |= {f"{STEP_S_OF}{one.name}": one.step_s for one in racers}
    terms |= {f"{RACED_S_OF}{one.name}": median(taken) for one, taken in zip(racers, times, strict=True) if taken}
    return retold(result, plans[number], terms, plans[number].predicted)
