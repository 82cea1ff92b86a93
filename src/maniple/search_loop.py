"""The search loop: takes the steps, and owns the budget, the seed and the clock of every strategy."""

from __future__ import annotations

import gc
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

from maniple.costs import ANALYTIC, Costs, NamedCosts, parts_of
from maniple.found_plans import PARETO, Found, find_on_rank_0, headway_step
from maniple.operators.lowering.precision import apply_semantics
from maniple.operators.plan.legality import check_semantics
from maniple.operators.plan.plan import Plan
from maniple.operators.plan.version_semantics import NO_STRATEGY, WEIGHTS, refuse_versions
from maniple.pipeline_request import Turns, asked_turns, in_turn, kept_semantics, kept_stages, naming_file, refuse_turns
from maniple.process.error import RequestError, nearest
from maniple.process.interruption import hold_interrupts
from maniple.search_limits import SURVEYED, Limits, cores_of
from maniple.search_runoff import can_race, race_off, races_compiled, settle
from maniple.strategies.interface.checked_strategy import make_checked
from maniple.strategies.interface.parallel_search import AbstractParallelStrategy
from maniple.strategies.interface.plan_frontier import Frontier
from maniple.strategies.interface.registry import STRATEGIES
from maniple.strategies.interface.strategy import Problem, asked_space

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.interface.strategy import AbstractStrategy, Progress
    from maniple.worker_pool import WorkerPool

__all__: list[str] = []

OBJECTIVES = ("time", "memory", PARETO)
COSTS = "costs"
"""What the explanation of a plan calls the costs that it was found with, where they are not the roofline."""
OPTIMIZER = "optimizer"
"""What it calls the optimizer that it was found for, where that is not descent with momentum."""


class Watch(Protocol):
    """What is told how a search goes."""

    def __call__(self, progress: Progress, elapsed_s: float) -> None:
        """Take note; called after every step, so it must be quick.

        Args:
            progress: how far it has come.
            elapsed_s: seconds since it began.
        """
        ...


@overload
def search(
    graph: Graph,
    machine: Machine,
    *,
    strategy: str = ...,
    objective: Literal["time", "memory"] = ...,
    budget: float | None = ...,
    proposals: int | None = ...,
    seed: int = ...,
    cores: int | None = ...,
    costs: str | Costs = ...,
    optimizer: AbstractOptimizer | None = ...,
    semantics: Mapping[str, str] | None = ...,
    order: str | None = ...,
    micro_batches: int | None = ...,
    inside: Plan | None = ...,
    space: Sequence[str] = ...,
    watch: Watch | None = ...,
) -> Plan: ...


@overload
def search(
    graph: Graph,
    machine: Machine,
    *,
    strategy: str = ...,
    objective: Literal["pareto"],
    budget: float | None = ...,
    proposals: int | None = ...,
    seed: int = ...,
    cores: int | None = ...,
    costs: str | Costs = ...,
    optimizer: AbstractOptimizer | None = ...,
    semantics: Mapping[str, str] | None = ...,
    order: str | None = ...,
    micro_batches: int | None = ...,
    inside: Plan | None = ...,
    space: Sequence[str] = ...,
    watch: Watch | None = ...,
) -> Frontier: ...


@overload
def search(
    graph: Graph,
    machine: Machine,
    *,
    strategy: str = ...,
    objective: str,
    budget: float | None = ...,
    proposals: int | None = ...,
    seed: int = ...,
    cores: int | None = ...,
    costs: str | Costs = ...,
    optimizer: AbstractOptimizer | None = ...,
    semantics: Mapping[str, str] | None = ...,
    order: str | None = ...,
    micro_batches: int | None = ...,
    inside: Plan | None = ...,
    space: Sequence[str] = ...,
    watch: Watch | None = ...,
) -> Plan | Frontier: ...


def search(
    graph: Graph,
    machine: Machine,
    *,
    strategy: str = "data_parallel",
    objective: str = "time",
    budget: float | None = None,
    proposals: int | None = None,
    seed: int = 0,
    cores: int | None = None,
    costs: str | Costs = ANALYTIC,
    optimizer: AbstractOptimizer | None = None,
    semantics: Mapping[str, str] | None = None,
    order: str | None = None,
    micro_batches: int | None = None,
    inside: Plan | None = None,
    space: Sequence[str] = (),
    watch: Watch | None = None,
) -> Plan | Frontier:
    """Find a plan for a graph on a machine, or a frontier of its time and memory.

    A plan that is simulated and does not fit in memory is refused. Ctrl-C gives the best plan so far. In a launched
    world a search with a budget in seconds or other costs than the roofline runs on rank 0, any other on every rank.

    Args:
        graph: the graph; it must have a loss.
        machine: the machine; it need not be at hand.
        strategy: a name that `maniple list strategies` shows.
        objective: what to have least of: ``time`` or, of some, ``memory``; ``pareto``: trades of both, as a frontier.
        budget: seconds, for strategies that need one; measuring counts, what an installation compiles once does not.
        proposals: how many plans to evaluate, instead of a budget or within one; a plan that was found says its number.
        seed: where all chance comes from: the same arguments give the same plan, except for budgets in seconds.
        cores: how many processes search, by default one a core; one in a launched world, or by what is measured.
        costs: what tasks take: ``analytic`` (a roofline), ``measured`` here, a file of measurements, or an object.
        optimizer: what will update the weights, for strategies that simulate; by default descent with momentum.
        semantics: what the plan is to change of results by intent, such as ``{"precision": "bf16"}``; see ``Plan``.
        order: how stages take turns (a name, text, a CSV); strategies that plan no pipelines put it on their plan.
        micro_batches: into how many parts a pipeline is to cut the samples, likewise.
        inside: a plan whose stages are kept: each operator changes within the processors of its own.
        space: what to choose besides: ``recompute`` (results computed again), ``cube`` (3-D layouts), ``stages``.
        watch: is told how it goes.

    Raises:
        RequestError: what was asked for is wrong, or no plan that was tried fits in memory.
    """
    chosen = _choose(strategy, objective, budget, proposals, cores)
    searched = _searched(graph, semantics := kept_semantics(inside, semantics), flows=chosen.flows)
    tasks, rule = _costs(costs, chosen, searched, machine, micro_batches), semantics.get(WEIGHTS)
    (turns, later), more = _turns(chosen, objective, order, micro_batches), asked_space(chosen, space)
    stages = None if inside is None else kept_stages(inside, (graph, searched), machine, later, chosen)
    limits = _limits(chosen, budget, proposals, cores, tasks, races=later == (None, None) and can_race(machine, tasks))

    def drive() -> Found:
        problem = Problem(searched, machine, seed, None, objective, optimizer, *turns, stages, more, rule)
        return _drive(chosen, replace(problem, costs=_surveyed(tasks, limits)), limits, watch, tasks)

    told = f"mp.search({chosen.name!r}" + ("" if budget is None else f", budget={budget:g} s") + ")"
    with naming_file(order):
        found = drive() if budget is None and costs == ANALYTIC else find_on_rank_0(told, drive, objective)
        return _settled(_decided(found, costs, graph, semantics, optimizer, limits), graph, machine, optimizer, later)


def _surveyed(costs: Costs, limits: Limits) -> CostModel | None:
    """What to search with, once the user has heard what is measured when."""
    limits.tell()
    return costs.survey(limits.until(SURVEYED))


def _limits(
    chosen: AbstractStrategy[Any],
    budget: float | None,
    proposals: int | None,
    cores: int | None,
    costs: Costs,
    *,
    races: bool,
) -> Limits:
    """What a search may take, from now on."""
    began_s = _load_compiled(chosen, budget, timing=costs.timing)
    return Limits(began_s, budget, proposals, cores_of(cores), costs.timing, races, races and races_compiled())


def _decided(
    found: Found,
    costs: str | Costs,
    graph: Graph,
    semantics: Mapping[str, str],
    optimizer: AbstractOptimizer | None,
    limits: Limits,
) -> Plan | Frontier:
    """What was found, or what wins the race, as plans of the graph that say which costs they were found with."""
    answer = _for_graph(_note_costs(found.answer, costs), graph, semantics)
    if not found.racers or not isinstance(answer, Plan):
        return answer
    racers = [_adapted(plan, graph, semantics) for plan in found.racers]
    return race_off(answer, racers, graph, optimizer, limits)


def _settled(
    found: Plan | Frontier, graph: Graph, machine: Machine, optimizer: AbstractOptimizer | None, turns: Turns
) -> Plan | Frontier:
    """What was found, with the turns that it is still to get, if it can run."""
    found = found if isinstance(found, Frontier) else in_turn(found, graph, machine, *turns)
    found.validate(graph, machine)
    return found if isinstance(found, Frontier) else _fitting(found, graph, machine, optimizer)


def _turns(chosen: AbstractStrategy[Any], objective: str, order: str | None, parts: int | None) -> tuple[Turns, Turns]:
    """The order and the micro-batches that a strategy is to heed, and those that its plan gets afterwards."""
    asked = asked_turns(order, parts)
    if objective == PARETO:
        refuse_turns(*asked)
    return (asked, (None, None)) if chosen.pipelines else ((None, None), asked)


def _searched(graph: Graph, semantics: Mapping[str, str], *, flows: bool) -> Graph:
    """The graph that runs under some semantics, which has the same names as the graph itself."""
    from maniple.operators.graph.graph import checked_graph

    checked_graph("search", graph)
    check_semantics(tuple(semantics.items()))
    if not flows:
        refuse_versions(semantics, NO_STRATEGY)
    return apply_semantics(graph, semantics)


def _for_graph(found: Plan | Frontier, graph: Graph, semantics: Mapping[str, str]) -> Plan | Frontier:
    """What was found for a graph under some semantics, as plans of the graph itself."""
    if not semantics and not graph.autocast:
        return found

    if isinstance(found, Frontier):
        points = tuple(replace(point, plan=_adapted(point.plan, graph, semantics)) for point in found.points)
        return replace(found, points=points)
    return _adapted(found, graph, semantics)


def _adapted(plan: Plan, graph: Graph, semantics: Mapping[str, str]) -> Plan:
    """A plan of what a graph is under some semantics, as one of the graph itself."""
    return replace(plan, graph=graph.fingerprint(), semantics=tuple(semantics.items()))


def _load_compiled(chosen: AbstractStrategy[Any], budget: float | None, *, timing: bool) -> float:
    """Compile what a search runs, or load it, and give the time from which its budget counts, if it has one.

    Compiling is done once for an installation, and does not count; loading does where tasks are timed in the budget.
    """
    began_s, compiled = time.monotonic(), list[str]()
    if not chosen.needs_budget and budget is None:
        return began_s
    if chosen.needs_budget:
        from maniple.strategies.simulation.compilation import compile_all, told

        with told(compiled.append):
            compile_all()
            chosen.load_compiled()
    else:
        chosen.load_compiled()
    return began_s if timing and not compiled else time.monotonic()


def _choose(
    strategy: str, objective: str, budget: float | None, proposals: int | None, cores: int | None
) -> AbstractStrategy[Any]:
    """The strategy, if it can be asked in this way."""
    if budget is not None and not budget > 0:
        raise RequestError(f"budget: expected more than 0 seconds, got {budget}")
    if proposals is not None and proposals < 1:
        raise RequestError(f"proposals: expected at least 1, got {proposals}")
    if cores is not None and cores < 1:
        raise RequestError(f"cores: expected at least 1, got {cores}")
    if objective not in OBJECTIVES:
        raise RequestError(f"objective {objective!r} is no choice{nearest(objective, OBJECTIVES)}")
    chosen = make_checked(strategy, STRATEGIES.lookup(strategy))
    if objective not in chosen.objectives:
        raise RequestError(
            f"strategy {strategy!r} does not know the objective {objective!r}, but {', '.join(chosen.objectives)}; ask "
            "strategy 'pareto', which knows all"
        )
    if chosen.needs_budget and budget is None and proposals is None:
        raise RequestError(f"strategy {strategy!r} needs a budget: pass budget=SECONDS or proposals=NUMBER")
    return chosen


def _costs(
    costs: str | Costs, chosen: AbstractStrategy[Any], graph: Graph, machine: Machine, micro_batches: int | None
) -> Costs:
    """What tells what tasks take, if it does."""
    from maniple.runtime.machine.machine import Machine

    if not isinstance(machine, Machine):
        raise RequestError(f"search: expected a machine, such as mp.Machine.preset('cpu:2'), got {machine!r:.60}")
    if isinstance(costs, str):
        return NamedCosts(costs, graph, machine, parts_of(chosen, graph, machine, micro_batches))
    if not isinstance(costs, Costs):
        raise RequestError(f"costs: expected a name, a file, or an object with the methods of Costs, got {costs!r}")
    return costs


def _fitting(plan: Plan, graph: Graph, machine: Machine, optimizer: AbstractOptimizer | None) -> Plan:
    """The plan, unless it was simulated and does not fit in memory."""
    least = min(memory.capacity_bytes for memory in machine.memories)
    if plan.predicted.memory_bytes is not None and plan.predicted.memory_bytes > least:
        from maniple.strategies.search.memory_fit import needed_bytes, refuse_unfit
        from maniple.strategies.simulation.simulation import Simulation

        simulation = Simulation(graph, machine, plan, optimizer=optimizer)
        refuse_unfit(plan, simulation, simulation.allocated_bytes() or needed_bytes(simulation))
    return plan


def _drive(
    strategy: AbstractStrategy[Any], problem: Problem, limits: Limits, watch: Watch | None, costs: Costs
) -> Found:
    """Step until the strategy has nothing left to try, the budget is used up, or the user interrupts."""
    with ExitStack() as stack:
        # The graph stays until the end, and so does the first simulation: collections need not look at them. What the
        # program has frozen itself would be let go together with them.
        freezes = strategy.needs_budget and gc.get_freeze_count() == 0
        if freezes:
            stack.callback(gc.unfreeze)
            gc.freeze()
        state = strategy.init(problem)
        if freezes:
            gc.freeze()
        pool, get_on = _pool(strategy, problem, limits), headway_step()
        if pool is not None:
            stack.enter_context(pool)
        try:
            progress = strategy.progress(state)
            while not strategy.terminate(state) and not limits.has_made_all(progress):
                if pool is not None:
                    pool.attend(limits.elapsed_s, limits.left_s)
                with hold_interrupts():
                    state = strategy.step(state) if pool is None else pool.step(state)
                progress = strategy.progress(state)
                get_on()
                if watch is not None:
                    watch(progress, limits.elapsed_s)
                if limits.left_s <= 0:
                    break
            interrupted = False
        except KeyboardInterrupt:
            if strategy.progress(state).best_s is None:
                raise
            interrupted = True
        if pool is not None:
            state = pool.settle(state)
        return settle(strategy, state, problem, None if interrupted else costs, limits)


def _pool(strategy: AbstractStrategy[Any], problem: Problem, limits: Limits) -> WorkerPool | None:
    """Other processes, for strategies that can use them; they know the graph and the machine, not what was measured."""
    if not isinstance(strategy, AbstractParallelStrategy) or not strategy.needs_budget:
        return None
    if limits.cores == 1 or problem.costs is not None:
        return None
    from maniple.worker_pool import WorkerPool

    return WorkerPool(strategy, problem, min(limits.cores, strategy.width) - 1, limits.proposals)


def _note_costs(found: Plan | Frontier, costs: str | Costs) -> Plan | Frontier:
    """The plan that says which costs it was found with, or the frontier whose plans do; not so of the roofline."""
    if not isinstance(costs, str) or costs == ANALYTIC:
        return found
    if isinstance(found, Plan):
        told = dict(found.explanation)
        return replace(found, explanation=tuple({**told, "": (*told.get("", ()), (COSTS, costs))}.items()))
    return found.with_terms(((COSTS, costs),))
