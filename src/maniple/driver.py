"""The search driver: owns the loop, the budget, the seed and the clock of every strategy."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any, Protocol

from maniple.operators.plan import Plan
from maniple.regions.error import RequestError
from maniple.runtime.interruption import uninterrupted
from maniple.strategies.registry import installed
from maniple.strategies.strategy import Problem

if TYPE_CHECKING:
    from maniple.operators.graph import Graph
    from maniple.runtime.machine import Machine
    from maniple.strategies.strategy import AbstractStrategy, Objective, Progress

__all__: list[str] = []

PIECE_BYTES = 1 << 18
"""A plan reaches the other ranks in pieces of this size, which a control message carries."""


class Watch(Protocol):
    """What is told how a search goes."""

    def __call__(self, progress: Progress, elapsed_s: float) -> None:
        """Take note; called after every step, so it must be quick.

        Args:
            progress: how far it has come.
            elapsed_s: seconds since it began.
        """
        ...


def search(
    graph: Graph,
    machine: Machine,
    *,
    strategy: str = "data_parallel",
    objective: Objective = "time",
    budget: float | None = None,
    proposals: int | None = None,
    seed: int = 0,
    watch: Watch | None = None,
) -> Plan:
    """Find a plan for a graph on a machine.

    A plan that is simulated and does not fit in memory is refused. A strategy that writes its plan down in one step
    simulates nothing: `maniple search` and `maniple simulate` say whether its plan fits.

    Ctrl-C ends a search early and gives the best plan found so far. In a launched world a search with a budget in
    seconds runs on rank 0 and the others wait for its plan, for clocks differ; any other search runs on every rank.

    Args:
        graph: the graph; it must have a loss.
        machine: the machine; it need not be at hand.
        strategy: a name that `maniple list strategies` shows.
        objective: what to minimise.
        budget: seconds, for strategies that need a budget; compiling the simulator, once for an installation, or
            loading it, is not counted.
        proposals: how many changes to evaluate, instead of a budget or within one. The explanation of a plan that was
            found in seconds says its number: the same number and seed find the same plan.
        seed: where all chance comes from: the same arguments give the same plan, except for budgets in seconds.
        watch: is told how it goes.

    Raises:
        RequestError: an unknown strategy or objective, a graph that cannot be trained, a budget that is missing or
            not above zero, or no plan that fits in memory.
    """
    graph.validate()
    if objective not in {"time", "memory", "pareto"}:
        raise RequestError(f"objective {objective!r}: expected time, memory or pareto")
    if budget is not None and not budget > 0:
        raise RequestError(f"budget: expected more than 0 seconds, got {budget}")
    if proposals is not None and proposals < 1:
        raise RequestError(f"proposals: expected at least 1, got {proposals}")
    chosen = installed().lookup(strategy)()
    if chosen.needs_budget and budget is None and proposals is None:
        raise RequestError(f"strategy {strategy!r} needs a budget: pass budget=SECONDS or proposals=NUMBER")
    if chosen.needs_budget:
        from maniple.strategies.simulation.compilation import compile_all

        compile_all()
    began = time.monotonic()
    problem = Problem(graph, machine, objective, seed)
    if budget is None:
        plan = _drive(chosen, problem, began, None, proposals, watch)
    else:
        plan = _on_rank_0(chosen, problem, began, budget, proposals, watch)
    plan.validate(graph, machine)
    _refuse_unfit(plan, graph, machine)
    return plan


def _refuse_unfit(plan: Plan, graph: Graph, machine: Machine) -> None:
    least = min(memory.capacity_bytes for memory in machine.memories)
    if plan.predicted.memory_bytes is not None and plan.predicted.memory_bytes > least:
        from maniple.strategies.memory_fit import refuse_unfit
        from maniple.strategies.simulation.simulation import Simulation

        refuse_unfit(plan, Simulation(graph, machine, plan))


def _drive(
    strategy: AbstractStrategy[Any],
    problem: Problem,
    began: float,
    budget: float | None,
    proposals: int | None,
    watch: Watch | None,
) -> Plan:
    """Step until the strategy has nothing left to try, the budget is used up, or the user interrupts."""
    state = strategy.init(problem)
    # The graph and the first simulation stay until the end: later collections need not look at them.
    gc.freeze()
    try:
        while not strategy.terminate(state):
            with uninterrupted():
                state = strategy.step(state)
            if watch is None and budget is None and proposals is None:
                continue
            progress, elapsed = strategy.progress(state), time.monotonic() - began
            if watch is not None:
                watch(progress, elapsed)
            if (budget is not None and elapsed >= budget) or (
                proposals is not None and progress.proposals >= proposals
            ):
                break
    except KeyboardInterrupt:
        if strategy.progress(state).best_s is None:
            raise
    finally:
        gc.unfreeze()
    return strategy.result(state)


def _on_rank_0(
    strategy: AbstractStrategy[Any],
    problem: Problem,
    began: float,
    budget: float,
    proposals: int | None,
    watch: Watch | None,
) -> Plan:
    """Search on rank 0 and give its plan to all; alone, just search."""
    from maniple.runtime import environment, world

    if environment.read() is None:
        return _drive(strategy, problem, began, budget, proposals, watch)
    here = world.current()
    told = b""
    if here.rank == 0:
        told = _drive(strategy, problem, began, budget, proposals, watch).text().encode()
    size = int.from_bytes(here.control.gather(len(told).to_bytes(8, "big"))[0], "big")
    pieces = [here.control.gather(told[at : at + PIECE_BYTES])[0] for at in range(0, size, PIECE_BYTES)]
    return Plan.parse(b"".join(pieces).decode(), "the plan of rank 0")
