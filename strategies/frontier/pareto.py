"""Pareto: trades of step time and memory per device, of all full splits, homes of weights, and what is computed again.

After Z. Cai et al., TensorOpt: Exploring the Tradeoffs in Distributed DNN Training with Auto-Parallelism (arXiv
2004.10856). The frontier is found in the additive model, within its bound; then its points, or as many of them as are
simulated, are plans, and what they take and hold is what the simulator says. That the frontier is every best trade is
so by the model only: of simulated figures, what is given is the best of the plans that were simulated.

    step      what it does
    1         the additive model
    2         its frontier
    then      with stages: the frontier of one arrangement of stages, order and micro-batches
    then      simulates one of its points, the leanest and the fastest first
    last      drops what is beaten
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np

from maniple.operators.graph.graph import Graph
from maniple.operators.plan.plan import Predicted
from maniple.process.error import RequestError, RunError
from maniple.process.inventory import available_cores
from maniple.runtime.machine.machine import Machine
from maniple.strategies.frontier.additive_model import Model, additive_model
from maniple.strategies.frontier.algebra import reduce
from maniple.strategies.frontier.arrangement import Arrangement, arrangements
from maniple.strategies.frontier.cube import cube_splits
from maniple.strategies.frontier.full_split import full_splits
from maniple.strategies.frontier.gap_search import Solution, solve
from maniple.strategies.frontier.homes import weight_plan
from maniple.strategies.frontier.seam import recomputable
from maniple.strategies.frontier.shared_weight import gap
from maniple.strategies.frontier.stage_search import Staged, StageSearch, columns_of
from maniple.strategies.interface.placement import complete
from maniple.strategies.interface.plan_frontier import Frontier, FrontierPoint, undominated
from maniple.strategies.interface.space import Choice, Space
from maniple.strategies.interface.strategy import AbstractStrategy, Problem, Progress
from maniple.strategies.search.memory_fit import needed_bytes
from maniple.strategies.simulation.region_cache import RegionCache
from maniple.strategies.simulation.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.plan.plan import Plan
    from maniple.strategies.frontier.shared_weight import SharedWeights
    from maniple.strategies.frontier.weighted_sum import Found
    from maniple.strategies.optcnn.additive_cost import AdditiveCost

__all__: list[str] = []

EPSILON = 0.01
"""By what share a plan of the space may need less memory and less time by the model than the one that stands for it."""
BOUND_EPSILON = 0.05
"""Within which the bound of shared weights is a frontier: with less it would take as long as the frontier itself."""
SIMULATED = 64
"""So many points are simulated at most."""


@final
@dataclass(frozen=True, slots=True)
class ParetoState:
    """The state of a search.

    Args:
        problem: what is searched.
        space: the graph's space.
        choices: of every operator those that are compared.
        again: of every operator whether its results may be computed again.
        cache: what regions add to a step, kept from one simulation to the next.
        model: the additive model, once it is there.
        cost: what it was made from.
        shared: the weights that several operators use.
        solution: its frontier, once it is known.
        stages: what finds the frontiers of pipelines, where they are asked for.
        left: the arrangements that are still to be searched.
        points: the points of the model that nothing beats, pipelines among them.
        waiting: those of them that are still to be simulated.
        simulated: those that are.
    """

    problem: Problem
    space: Space
    choices: tuple[tuple[Choice, ...], ...]
    again: tuple[bool, ...]
    cache: RegionCache
    model: Model | None = None
    cost: AdditiveCost | None = None
    shared: SharedWeights | None = None
    solution: Solution | None = None
    stages: StageSearch | None = None
    left: tuple[Arrangement, ...] = ()
    points: tuple[Found | Staged, ...] = ()
    waiting: tuple[Found | Staged, ...] = ()
    simulated: tuple[FrontierPoint, ...] = ()


@final
class Pareto(AbstractStrategy[ParetoState]):
    """Finds every best trade of the additive model and simulates at most 64; of one plan, the fastest or leanest."""

    name: ClassVar[str] = "pareto"
    needs_budget: ClassVar[bool] = False
    objectives: ClassVar[tuple[str, ...]] = ("time", "memory", "pareto")
    spaces: ClassVar[tuple[str, ...]] = ("recompute", "cube", "stages")

    def load_compiled(self) -> None:
        """Compile what a search calls, or load it."""
        _search_small()

    def init(self, problem: Problem) -> ParetoState:
        """The state before the model."""
        space = Space.of(problem.graph, len(problem.machine.processors))
        splits = cube_splits if "cube" in problem.space else full_splits
        choices = tuple(splits(space, number) for number in range(len(space.names)))
        asked = "recompute" in problem.space
        again = recomputable(problem.graph) if asked else (False,) * len(space.names)
        return ParetoState(problem, space, choices, again, RegionCache(problem.machine))

    def step(self, state: ParetoState) -> ParetoState:
        """The state after the model, the frontier of the model, or one more simulated point."""
        if state.model is None:
            model, cost, shared = additive_model(state.problem, state.space, state.choices, state.again)
            return replace(state, model=model, cost=cost, shared=shared)
        if state.solution is None:
            solution = _proved(solve(state.model, EPSILON, available_cores()), state.shared)
            state = replace(state, solution=solution, points=solution.points)
            if "stages" not in state.problem.space:
                return _begun(state)
            search = StageSearch(state.problem, state.again, EPSILON, available_cores())
            graph, wanted = state.problem.graph, arrangements(state.problem)
            graph.foresee_batches([-(-graph.batch // one.micro_batches) for one in wanted])
            return _begun(replace(state, stages=search, left=wanted))
        if state.left and state.stages is not None:
            arrangement, *left = state.left
            known = columns_of(state.points)
            points = undominated_points((*state.points, *state.stages.points(arrangement, known)))
            return _begun(replace(state, left=tuple(left), points=points))
        if not state.waiting:
            return state
        found, *waiting = state.waiting
        return replace(state, waiting=tuple(waiting), simulated=(*state.simulated, _simulate(state, found)))

    def terminate(self, state: ParetoState) -> bool:
        """Whether all points are simulated."""
        return state.solution is not None and not state.left and not state.waiting

    def progress(self, state: ParetoState) -> Progress:
        """How far a state has come: every simulated point counts as a proposal."""
        count = len(state.simulated)
        return Progress(count, count, min((point.step_s for point in state.simulated), default=None))

    def result(self, state: ParetoState) -> Plan:
        """Of the plans that were simulated the fastest that fits, or the leanest.

        Raises:
            RequestError: no point is simulated yet, or none fits.
        """
        found = self.frontier(state)
        if state.problem.objective == "memory":
            plan = min(found, key=lambda point: (point.peak_memory_bytes, point.step_s)).plan
        else:
            plan = found.best()
        told = (("proposals", len(state.simulated)), *dict(plan.explanation)[""])
        return replace(plan, explanation=(("", told),))

    def frontier(self, state: ParetoState) -> Frontier:
        """The points that were simulated, without those that others beat.

        Raises:
            RequestError: no point is simulated yet.
        """
        solution, points = state.solution, state.simulated
        if solution is None or not points:
            raise RequestError("strategy 'pareto': no plan was simulated yet; give it a larger budget, or none")
        return Frontier(
            undominated(points),
            exact=not _inexact(state) and not state.waiting,
            epsilon=solution.epsilon,
            model_points=len(state.points),
            simulated=len(points),
            inexact=tuple(state.space.names[operator] for operator in _inexact(state)),
            gap=solution.gap if state.stages is None else None,
            time_correlation=rank_correlation([p.model_s for p in points], [p.step_s for p in points]),
            memory_correlation=rank_correlation([p.model_bytes for p in points], [p.peak_memory_bytes for p in points]),
            capacity_bytes=min(memory.capacity_bytes for memory in state.problem.machine.memories),
        )


@cache
def _search_small() -> None:
    """Search a small graph to the end, which calls all that is compiled."""
    from maniple.strategies.frontier import gap_search

    graph = Graph("small")
    x, y = graph.input("x", (4, 4)), graph.input("y", (4,), dtype="int64")
    before = graph.linear(x, 4)
    graph.loss(graph.cross_entropy(graph.add(before, graph.relu(graph.linear(before, 4))), y))
    strategy = Pareto()
    strategy.step(strategy.init(Problem(graph, Machine.cpu(2))))  # whose processors share a memory
    state = strategy.step(strategy.init(Problem(graph, Machine.preset("p100x4"))))
    if state.model is not None:
        gap_search.search_gaps(state.model, EPSILON, 1)
    while not strategy.terminate(state):
        state = strategy.step(state)


def rank_correlation(some: Sequence[float], others: Sequence[float]) -> float | None:
    """Kendall's rank correlation tau-b of two rows of figures; None where one of them is all equal."""
    one, other = (np.sign(np.subtract.outer(np.asarray(row), np.asarray(row))) for row in (some, others))
    apart = float(np.sqrt((one != 0).sum() * (other != 0).sum()))
    return float((one * other).sum()) / apart if apart else None


def _proved(solution: Solution, shared: SharedWeights | None) -> Solution:
    """The solution that names the operators whose weights others use, too, and how far it may be from a bound."""
    if shared is None or not shared.operators:
        return solution
    bound = solve(shared.least(), BOUND_EPSILON, available_cores())
    inexact = tuple(sorted({*solution.inexact, *shared.operators}))
    if bound.inexact:  # what is found is no bound
        return replace(solution, inexact=inexact)
    prices = [shared.together(point) for point in solution.points]
    least = [(point.memory, point.ticks) for point in bound.points]
    return replace(solution, inexact=inexact, gap=gap(prices, least, bound.epsilon))


def undominated_points(points: Sequence[Found | Staged]) -> tuple[Found | Staged, ...]:
    """Those that no other beats, memory ascending.

    Args:
        points: by the model.
    """
    return tuple(points[place] for place in reduce(*columns_of(points)).tolist())


def _begun(state: ParetoState) -> ParetoState:
    """The state whose points wait for simulation once all arrangements are searched.

    In the model nothing overlaps, and what crosses between stages is taken to be cut evenly, so it may take pipelines
    for the best that are not: plans without stages have half of what is simulated, whatever beats them there.
    """
    if state.left:
        return state
    if state.stages is None or state.solution is None:
        return replace(state, waiting=_spread(state.points, SIMULATED))
    whole = _spread(state.solution.points, SIMULATED // 2)
    staged = tuple(point for point in state.points if isinstance(point, Staged))
    cut = _spread(staged, SIMULATED - len(whole))
    return replace(state, waiting=(*whole[:2], *cut[:2], *whole[2:], *cut[2:]))


def _inexact(state: ParetoState) -> tuple[int, ...]:
    """The operators for which the frontier of the model is not proved."""
    own = () if state.solution is None else state.solution.inexact
    return tuple(sorted({*own, *(() if state.stages is None else state.stages.inexact)}))


def _spread(points: Sequence[Found | Staged], most: int) -> tuple[Found | Staged, ...]:
    """The points that are simulated: both ends first, the others spread evenly over the frontier."""
    count = min(most, len(points))
    places = np.unique(np.rint(np.linspace(0, len(points) - 1, count)).astype(np.int64)).tolist()
    return tuple(points[place] for place in [*places[-1:], *places[:1], *places[1:-1]][: len(places)])


def _plan(state: ParetoState, found: Found | Staged) -> Plan:
    """A point of the model as a plan."""
    if isinstance(found, Staged):
        if state.stages is None:
            raise RunError("pareto: a pipeline, and no stages were asked for")
        return state.stages.plan(found, Pareto.name)
    operators = tuple(
        (name, replace(own.plan(choices[choice % len(choices)]), recompute=choice >= len(choices)))
        for name, own, choices, choice in zip(
            state.space.names, state.space.operators, state.choices, found.chosen, strict=True
        )
    )
    return _at_homes(state, found, complete(state.problem, Pareto.name, operators))


def _simulate(state: ParetoState, found: Found | Staged) -> FrontierPoint:
    """A point of the model as a plan, with what it takes and holds."""
    problem, plan = state.problem, _plan(state, found)
    simulation = Simulation(
        problem.graph, problem.machine, plan, problem.costs, cache=state.cache, optimizer=problem.optimizer
    )
    step_s = simulation.makespan_ns / 1e9
    peak = max(simulation.allocated_bytes() or needed_bytes(simulation))
    solution = state.solution
    told = (
        ("search", "a point of the additive model's frontier of time and memory; exact and epsilon are of it"),
        *((("space", ", ".join(problem.space)),) if problem.space else ()),
        ("model_s", found.ticks / 1e9),
        ("model_bytes", found.memory),
        ("exact", not _inexact(state)),
        ("epsilon", 0.0 if solution is None else solution.epsilon),
        ("model_points", len(state.points)),
    )
    plan = replace(plan, explanation=(("", told),), predicted=Predicted(step_s, peak, simulation.bytes))
    return FrontierPoint(step_s, peak, found.ticks / 1e9, found.memory, len(plan.processors_used()), plan)


def _at_homes(state: ParetoState, found: Found, plan: Plan) -> Plan:
    """The plan whose weights live where the point says."""
    if state.cost is None or not any(found.homes):
        return plan
    operators, homes = state.cost.operators, dict(plan.weights)
    for number, home in enumerate(found.homes):
        choice = state.choices[number][found.chosen[number] % len(state.choices[number])]
        for tensor in operators.weights(number) if home else ():
            name = operators.plan_free.tensors[tensor].name
            homes[name] = weight_plan(operators, tensor, number, choice, home) or homes[name]
    return replace(plan, weights=tuple(homes.items()))
