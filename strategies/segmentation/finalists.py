"""Finalists: pipelines that a partition search found, simulated as plans beside the best plans without a pipeline.

The partition search has a clock of its own, which knows stages and nothing else. It says in which order pipelines are
looked at, and which need not be: a stage computes for so long at least, whatever the rest of the step does. What is
chosen is what the one simulator finds fastest, among pipelines and among plans that take the mini-batch whole.

    two layers on two hosts, milliseconds        the search's    at least    simulated
    data_parallel                                                            9.1
    1f1b, 2 stages, 4 micro-batches              4.2             3.4         4.9        chosen
    early_backward, 2 stages, 8 micro-batches    4.4             3.5         5.2
    gpipe, 2 stages, 2 micro-batches             5.9             5.0                    cannot be faster
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, final

from maniple.operators.plan.plan import Predicted
from maniple.process.error import RequestError
from maniple.strategies.interface.placement import complete, whole
from maniple.strategies.search.memory_fit import excess, needed_bytes, refuse_unfit
from maniple.strategies.simulation.region_cache import RegionCache
from maniple.strategies.simulation.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maniple.operators.plan.plan import Plan, Term
    from maniple.strategies.interface.strategy import Problem

__all__: list[str] = []

MOST = 8
"""So many pipelines are simulated at most, and beyond them the first of each number of stages."""
EARLY = 1 << 14
"""So many steps OptCNN has for a plan beside them."""
TRIED = "step_s of "
"""How the explanation of a plan begins that tells of another's."""
UNCOUNTED = "micro-batches were counted to add starts of kernels alone, and were not measured"
"""What the explanation of a plan says where what a micro-batch takes as it runs was not known, and why."""


@final
@dataclass(frozen=True, slots=True)
class Finalist:
    """A plan that may be chosen.

    Args:
        name: what a table calls it.
        plan: the plan.
        estimate_s: what the partition search expects it to take.
        bound_s: what it takes at least.
        told: what the explanation says of it, if it is chosen.
        uncounted: why its estimate and its bound do not know what a micro-batch takes as it runs; else nothing.
    """

    name: str
    plan: Plan
    estimate_s: float = 0.0
    bound_s: float = 0.0
    told: tuple[tuple[str, Term], ...] = ()
    uncounted: str = ""

    def explored(self, variation: str, estimate_s: float) -> Finalist:
        """The same as a variation of an order, by the clock of who explores it."""
        return replace(self, estimate_s=estimate_s, told=(("variation", variation), *self.told))


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation says of a finalist.

    Args:
        finalist: the plan.
        step_s: seconds of a step; infinite where it does not fit in memory.
        moved_bytes: what crosses between memories.
    """

    finalist: Finalist
    step_s: float
    moved_bytes: int


def load_simulator() -> None:
    """Compile what decides between finalists, or load it."""
    from maniple.strategies.optcnn.optcnn import OptCNN
    from maniple.strategies.simulation.compilation import compile_all

    compile_all()
    OptCNN().load_compiled()


def micro_batch_counts(problem: Problem) -> tuple[int, ...]:
    """The numbers of micro-batches to look at: the one asked for, or powers of two up to four for each processor.

    With 4 p micro-batches and p balanced stages a fifth of the time is a bubble (Huang et al., GPipe, section 2.3).
    """
    if problem.micro_batches is not None:
        return (problem.micro_batches,)
    most = min(problem.graph.batch, max(4, 4 * len(problem.machine.processors)))
    return tuple(1 << power for power in range(1, most.bit_length())) or (1,)


def rivals(problem: Problem, pipelines: Sequence[Finalist]) -> list[Finalist]:
    """What takes the mini-batch whole: the plans with which searches begin, and the stages that are expected fastest.

    There are none where an order or a number of micro-batches is asked for.
    """
    from maniple.strategies.optcnn.optcnn import OptCNN
    from maniple.strategies.soap.seeding import all_seeds

    if problem.order is not None or problem.micro_batches is not None:
        return []
    graph, processors = problem.graph, problem.machine.processors
    fastest = max(processors, key=lambda processor: (processor.flops_per_s, -processor.id)).id
    alone = complete(problem, "one processor", tuple((node.name, whole(graph, node, fastest)) for node in graph.nodes))
    found = [Finalist("one processor", alone)]
    found += [Finalist(strategy.name, strategy.plan(problem)) for strategy in all_seeds(problem)]
    exact, state, steps = OptCNN(), OptCNN().init(problem), 0
    while not exact.terminate(state) and steps < EARLY:
        state, steps = exact.step(state), steps + 1
    found += [Finalist(exact.name, exact.result(state))] if exact.terminate(state) else []
    if pipelines:
        best = min(pipelines, key=lambda each: each.estimate_s)
        stages = f"{len(best.plan.stages)} stages, the mini-batch whole"
        told = tuple(term for term in best.told if term[0] not in {"pipeline order", "micro-batches"})
        found.append(Finalist(stages, replace(best.plan, pipeline=None), told=told))
    return found


def choose(
    problem: Problem, strategy: str, pipelines: Sequence[Finalist], rivals: Sequence[Finalist], most: int = MOST
) -> Plan:
    """The fastest of some plans that fits in memory; of equals the first, a rival before a pipeline.

    Args:
        problem: the problem.
        strategy: who asks.
        pipelines: those that a partition search found.
        rivals: plans that are simulated in any case.
        most: so many pipelines are simulated, those that are expected fastest, and the first of each number of stages:
            what the search's clock does not know, such as weights that several stages use, errs alike at one depth.

    Raises:
        RequestError: none fits in memory, or none can run; says what is wrong with the first.
    """
    cache, refused, refusals = RegionCache(problem.machine), list[RequestError](), list[RequestError]()
    outcomes = [outcome for rival in rivals for outcome in _tried(problem, rival, cache, refused)]
    best_s, passed, tried, depths = _best_s(outcomes), 0, 0, set[int]()
    for finalist in sorted(_different(problem, pipelines, refusals), key=lambda each: each.estimate_s):
        depth = len(finalist.plan.stages)
        if (tried >= most and depth in depths) or finalist.bound_s >= best_s:
            passed += 1
            continue
        depths.add(depth)
        found = _tried(problem, finalist, cache, refusals)
        outcomes += found
        tried += len(found)
        best_s = _best_s(outcomes)
    if best_s == inf:
        raise (*refusals, *refused, RequestError(f"{strategy}: expected at least one plan to choose from"))[0]
    told: list[tuple[str, Term]] = [("pipelines passed over", passed)] if passed else []
    told += [("pipelines refused", str(refusals[0]).splitlines()[-1].strip())] if refusals else []
    told += [(UNCOUNTED, why) for why in dict.fromkeys(each.uncounted for each in pipelines) if why]
    return _told(strategy, outcomes, told)


def _told(strategy: str, outcomes: Sequence[Outcome], told: Sequence[tuple[str, Term]]) -> Plan:
    """The plan of the fastest, that tells of all."""
    chosen, *_ = ordered = sorted(outcomes, key=lambda outcome: outcome.step_s)
    terms = ("found by", chosen.finalist.name), *chosen.finalist.told
    table: dict[str, Term] = {}
    for each in ordered:  # of several of a name the fastest
        if each.step_s < inf:
            table.setdefault(TRIED + each.finalist.name, each.step_s)
    plan = chosen.finalist.plan
    reasons = tuple((name, why) for name, why in plan.explanation if name)
    predicted = Predicted(chosen.step_s, None, chosen.moved_bytes)
    return replace(
        plan, strategy=strategy, explanation=(*reasons, ("", (*terms, *table.items(), *told))), predicted=predicted
    )


def _best_s(outcomes: Iterable[Outcome]) -> float:
    return min((outcome.step_s for outcome in outcomes), default=inf)


def _different(problem: Problem, finalists: Iterable[Finalist], refusals: list[RequestError]) -> list[Finalist]:
    """Those whose stages can take turns so, and that do not do the same as one before them."""
    found: dict[object, Finalist] = {}
    for each in finalists:
        try:
            order = each.plan.order(problem.graph)
        except RequestError as error:
            refusals.append(error)
            continue
        found.setdefault((each.plan.operators, each.plan.stages, order), each)
    return list(found.values())


def _tried(problem: Problem, finalist: Finalist, cache: RegionCache, refusals: list[RequestError]) -> list[Outcome]:
    """What a simulation says of a plan; nothing where it cannot run, and then why is noted."""
    graph, machine, plan = problem.graph, problem.machine, finalist.plan
    try:
        simulation = Simulation(graph, machine, plan, problem.costs, problem.optimizer, cache)
    except RequestError as error:
        refusals.append(error)
        return []
    if excess(simulation)[0] > 0:
        try:
            refuse_unfit(plan, simulation, needed_bytes(simulation))
        except RequestError as error:
            refusals.append(error)
        return [Outcome(finalist, inf, simulation.bytes)]
    return [Outcome(finalist, simulation.makespan_ns / 1e9, simulation.bytes)]
