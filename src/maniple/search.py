"""The search driver: owns the loop, the budget, the seed and the clock of every strategy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from maniple.regions.error import RequestError
from maniple.strategies.registry import installed
from maniple.strategies.strategy import Problem

if TYPE_CHECKING:
    from maniple.operators.graph import Graph
    from maniple.operators.plan import Plan
    from maniple.runtime.machine import Machine
    from maniple.strategies.strategy import Objective

__all__: list[str] = []


def search(
    graph: Graph,
    machine: Machine,
    *,
    strategy: str = "data_parallel",
    objective: Objective = "time",
    budget: float | None = None,
    seed: int = 0,
) -> Plan:
    """Find a plan for a graph on a machine.

    Args:
        graph: the graph; it must have a loss.
        machine: the machine; it need not be at hand.
        strategy: a name that `maniple list strategies` shows.
        objective: what to minimise.
        budget: seconds, for strategies that need a budget.
        seed: where all chance comes from: the same arguments give the same plan, except for budgets in seconds.

    Raises:
        RequestError: an unknown strategy or objective, a graph that cannot be trained, a budget that is missing or
            not above zero.
    """
    graph.validate()
    if objective not in {"time", "memory", "pareto"}:
        raise RequestError(f"objective {objective!r}: expected time, memory or pareto")
    if budget is not None and not budget > 0:
        raise RequestError(f"budget: expected more than 0 seconds, got {budget}")
    chosen = installed().lookup(strategy)()
    if chosen.needs_budget and budget is None:
        raise RequestError(f"strategy {strategy!r} needs a budget: pass budget=SECONDS")
    deadline = None if budget is None else time.monotonic() + budget
    state = chosen.init(Problem(graph, machine, objective, seed))
    while not chosen.terminate(state):
        state = chosen.step(state)
        if deadline is not None and time.monotonic() >= deadline:
            break
    plan = chosen.result(state)
    plan.validate(graph, machine)
    return plan
