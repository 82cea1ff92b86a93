"""Exhaustive search: the fastest plan of the published space, by branch and bound on simulated step times.

An operator's choices are its equal splits, on a range of processors with any start and stride, of which those that the
machine's symmetries make alike count once (up to how ties are broken by ids). `exhaustive_layers` decides layers, not
operators, as the published networks have them (see `layer`). (FlexFlow's authors search the same way, depth first with
A*: SysML 2019, section 8.4.)

    phase     what a step does                                             ends
    seeds     the named plans that are in the space are simulated          before the first step
    walk      draws one or two layers anew, and keeps what is faster or    after WALK plans for each layer
              little slower
    terms     makes a part of the bounds                                   when they are made
    branches  times the next plans that no bound puts above a limit        when the limit is above the fastest plan

The limit begins at the bound on all plans, and rises by a share, RISE at first, when no plan below it is left (R. E.
Korf, Depth-first iterative-deepening, Artificial Intelligence 27, 1985): so few plans are timed that are slower than
the fastest, and a search that ends early has proved that no plan is faster than the limit before. Where fewer than
twice as many plans were timed as below the limit before, the next rise is twice as large: what is timed again and again
is then never much more than what is timed at last.

A plan in the branches is timed from its fragments (see `fragment`). One that lacks a fragment, or is faster than all
before, is simulated, by which its fragments are known; a step simulates one plan at most. Of a plan that is nearly the
fastest all that the machine's symmetries make of it are timed too, for ids break ties otherwise there.

    limit 100 us: 3 plans, the fastest 108 us     101 us: 5, 105 us     103 us: 20, 104 us     104 us: 44: proved
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import exp, prod
from random import Random
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.graph.graph import Graph
from maniple.process.error import RequestError
from maniple.runtime.machine.machine import Machine
from maniple.strategies.exhaustive.branch_kernels import ENDED, FOUND, PAUSED
from maniple.strategies.exhaustive.frontier import Frontier
from maniple.strategies.exhaustive.layer_fragment import Fragments
from maniple.strategies.exhaustive.published_layer import Layers, find_layers, separate
from maniple.strategies.exhaustive.relaxation import Relaxation
from maniple.strategies.exhaustive.symmetry import symmetries
from maniple.strategies.exhaustive.term import Terms
from maniple.strategies.interface.placement import complete
from maniple.strategies.interface.space import Space
from maniple.strategies.interface.strategy import AbstractStrategy, Problem, Progress
from maniple.strategies.optcnn.placed_operators import PlacedOperators
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap.evaluation import NS, UNFIT, Evaluation
from maniple.strategies.soap.seeding import SEEDS, choices_of, found_plan

if TYPE_CHECKING:
    from maniple.operators.plan.plan import Plan, Term

__all__: list[str] = []

WALK = 100
"""So many plans for each layer are drawn before the branches, but not more than a part SHARE of all."""
SHARE = 16
RISE = 0.01
WARMTH = 0.02
"""The share of the best step time by which a slower plan is taken with probability 1/e at first; in the end 0."""
ENTRIES = 64
"""So many terms are made in a step, so that a budget can end between steps."""
TRIES = 2_000
"""A step ends after so many choices."""
FOREVER = 1 << 62
"""More nanoseconds than any step takes; while no plan fits in memory, the fastest counts as so slow."""
UNKEPT = "none are kept, so each plan is simulated: the layers that meet have too many choices together"
"""What is said of the fragments where that is so."""


@final
@dataclass(frozen=True, slots=True)
class ExhaustiveState:
    """The state of a search.

    Args:
        problem: what is searched.
        space: the graph's space.
        layers: what is decided.
        terms: what the bounds are made of; it makes more of them as they are asked for.
        fragments: what plans are timed by; it keeps more of them as plans are simulated.
        cost: what the terms come from.
        simulation: it stands at the last plan that was simulated.
        evaluation: of plans by it.
        best: the numbers of the fastest choices found.
        best_cost: their step time.
        at: the numbers at which the walk stands.
        cost_there: their step time.
        proposals: how many plans were simulated, or timed from their fragments; a plan counts at every limit that it is
            timed below.
        known: how many of the fragments were kept when this state was reached.
        walked: how many were drawn by the walk.
        entries: how many entries of the terms were made.
        accepted: how many were faster than all before.
        frontier: the branches, once the terms are made.
        position: where the search of the branches stands.
        alike: what symmetries make of the plan there, and is not timed yet.
        proved: no plan takes fewer nanoseconds.
        limit: plans of at least so many nanoseconds are left for later.
        rise: the share by which the limit is higher than the one before.
        passed: how many plans were timed below the limit, and below the one before.
        ended: whether no branch is left.
    """

    problem: Problem
    space: Space
    layers: Layers
    terms: Terms
    fragments: Fragments
    cost: PlacedOperators
    simulation: Simulation
    evaluation: Evaluation
    best: tuple[int, ...]
    best_cost: float
    at: tuple[int, ...]
    cost_there: float
    proposals: int
    known: int = 0
    walked: int = 0
    entries: int = 0
    accepted: int = 0
    frontier: Frontier | None = None
    position: tuple[int, ...] = ()
    alike: tuple[tuple[int, ...], ...] = ()
    proved: int = 0
    limit: int = 0
    rise: float = RISE
    passed: tuple[int, int] = (0, 0)
    ended: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many choices each layer has."""
        return tuple(len(self.layers.choices[leader]) for leader in self.layers.leaders)

    @property
    def best_ns(self) -> int:
        """What the fastest plan takes, if one fits in memory."""
        return min(round(self.best_cost / NS), FOREVER)


class Exhaustive(AbstractStrategy[ExhaustiveState]):
    """Finds the fastest plan of equal splits."""

    name: ClassVar[str] = "exhaustive"
    needs_budget: ClassVar[bool] = True
    exact: ClassVar[str] = "the fastest plan of equal splits"

    def layers(self, problem: Problem, space: Space) -> Layers:
        """What is decided: every operator by itself."""
        del problem
        return separate(space)

    @final
    def load_compiled(self) -> None:
        """Compile the search of the branches, or load it."""
        _search_small()

    @final
    def init(self, problem: Problem) -> ExhaustiveState:
        """The state in which the seeds have been simulated.

        Raises:
            RequestError: the costs are not the roofline, by which alone the bounds hold.
        """
        if problem.costs is not None:
            raise RequestError(f"strategy {self.name!r}: its bounds hold for analytic costs only; use them, or soap")
        space = Space.of(problem.graph, len(problem.machine.processors))
        layers = self.layers(problem, space)
        first = (0,) * len(layers.leaders)
        named = zip(space.names, space.operators, layers.of(first), strict=True)
        plan = complete(problem, self.name, tuple((name, own.plan(choice)) for name, own, choice in named))
        simulation = Simulation(problem.graph, problem.machine, plan, optimizer=problem.optimizer)
        evaluation = Evaluation(simulation, space, layers.of(first))
        plans = [choices_of(space, strategy().plan(problem)) for strategy in SEEDS]
        seeds = {first, *(n for found in plans if found is not None and (n := layers.numbers(found)) is not None)}
        best_cost, best = min((evaluation.move_to(layers.of(seed)), seed) for seed in sorted(seeds))
        cost = PlacedOperators(problem, space, layers.choices)
        terms = Terms(problem.graph, plan, space, layers, cost)
        fragments = Fragments(cost.plan_free, layers, simulation.cache.network.lanes)
        own = problem, space, layers, terms, fragments, cost, simulation, evaluation
        return ExhaustiveState(*own, best, best_cost, best, best_cost, len(seeds))

    @final
    def step(self, state: ExhaustiveState) -> ExhaustiveState:
        """The state after one more plan, or a part of the bounds, or some branches further on."""
        if state.walked < _walk(state):
            return _walk_on(state)
        frontier = state.frontier
        if frontier is None:
            state = replace(state, entries=state.entries + ENTRIES)
            return _with_frontier(state) if state.terms.make(state.entries) else state
        if state.alike:
            return _time(replace(state, alike=state.alike[1:]), state.alike[0])[0]
        return _branch(state, frontier)

    @final
    def terminate(self, state: ExhaustiveState) -> bool:
        """Whether no branch is left."""
        return state.ended

    @final
    def progress(self, state: ExhaustiveState) -> Progress:
        """How far a state has come."""
        best = None if state.best_cost >= UNFIT else state.best_cost
        return Progress(state.proposals, state.accepted, best)

    @final
    def result(self, state: ExhaustiveState) -> Plan:
        """The fastest plan found; whether it is the fastest of all is in its explanation.

        Raises:
            RequestError: no plan that was simulated fits in memory.
        """
        exact = self.terminate(state)
        search = self.exact if exact else "the budget ended before the search did"
        told: tuple[tuple[str, Term], ...] = (("proposals", state.proposals), ("search", search), ("exact", exact))
        if not state.fragments.keeps:
            told = (*told, ("fragments", UNKEPT))
        best, bound_s = (state.best_cost, state.layers.of(state.best)), state.proved * NS or None
        return found_plan(self.name, state.problem, state.evaluation, [best], told, bound_s)


@final
class ExhaustiveLayers(Exhaustive):
    """Finds the fastest plan of equal splits of layers."""

    name: ClassVar[str] = "exhaustive_layers"
    exact: ClassVar[str] = "the fastest plan of equal splits of layers"

    def layers(self, problem: Problem, space: Space) -> Layers:
        """What is decided: layers, with what only passes on."""
        return find_layers(problem.graph, space)


@cache
def _search_small() -> None:
    """Search a small graph to the end, which calls all that is compiled."""
    graph = Graph("small")
    x, y = graph.input("x", (4, 4)), graph.input("y", (4,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(x, 2), y))
    strategy = Exhaustive()
    state = strategy.init(Problem(graph, Machine.preset("p100x2")))
    while not strategy.terminate(state):
        state = strategy.step(state)


def _walk(state: ExhaustiveState) -> int:
    """How many plans the walk draws."""
    return min(WALK * len(state.layers.leaders), prod(state.sizes) // SHARE)


def _walk_on(state: ExhaustiveState) -> ExhaustiveState:
    """Draw one or two layers anew, and go there if it is faster or little slower."""
    chance = Random((state.problem.seed << 64) + state.walked)
    sizes = state.sizes
    after = list(state.at)
    for layer in chance.sample(range(len(sizes)), min(len(sizes), chance.choice((1, 1, 2)))):
        after[layer] = chance.randrange(sizes[layer])
    left = 1 - state.walked / _walk(state)
    state = replace(state, walked=state.walked + 1)
    if tuple(after) == state.at:
        return state
    state, cost = _simulate(state, tuple(after))
    slower = (cost - state.cost_there) / (WARMTH * left * state.best_cost)
    return replace(state, at=tuple(after), cost_there=cost) if chance.random() < exp(-max(0.0, slower)) else state


def _with_frontier(state: ExhaustiveState) -> ExhaustiveState:
    """Make the bounds of the terms."""
    machine = state.problem.machine
    launch_ns = min(processor.launch_s for processor in machine.processors) / NS
    ports = frozenset(machine.first_of(rank) for rank in {memory.rank for memory in machine.memories})
    relaxation = Relaxation(state.problem.graph, state.layers, state.terms, state.cost, launch_ns, ports)
    frontier = Frontier(state.layers, relaxation.bounds, state.space, symmetries(machine))
    least = max(1, int(frontier.least))
    return replace(state, frontier=frontier, position=frontier.start, proved=least, limit=least + 1)


def _branch(state: ExhaustiveState, frontier: Frontier) -> ExhaustiveState:
    """Go on in the branches for some choices, or up to the next plan that may be nearly the fastest."""
    best = state.best_ns
    limits = min(state.limit, best), _near(best), TRIES
    found, position, timed = frontier.after(state.position, state.fragments.view(state.known), limits)
    passed = state.passed[0] + timed + (found == FOUND), state.passed[1]
    state = replace(state, position=position, proposals=state.proposals + timed, passed=passed)
    if found == ENDED:
        return _deeper(state, frontier, best)
    if found == PAUSED:
        return state
    state, cost = _time(state, position)
    return replace(state, alike=frontier.alike(position)) if cost <= state.best_cost * (1 + RISE) else state


def _near(best_ns: int) -> int:
    """A plan that takes at least so many nanoseconds is not nearly the fastest."""
    return min(int(best_ns * (1 + RISE)) + 1, FOREVER)


def _time(state: ExhaustiveState, numbers: tuple[int, ...]) -> tuple[ExhaustiveState, float]:
    """Simulate a plan, unless its fragments are known and it is not faster than all before; also gives its step time.

    A time that is not nearly the fastest may be less than what the plan takes.
    """
    best = state.best_ns
    step_ns = state.fragments.step_ns(numbers, _near(best), state.known)
    if step_ns >= best:
        return replace(state, proposals=state.proposals + 1), step_ns * NS
    return _simulate(state, numbers)


def _deeper(state: ExhaustiveState, frontier: Frontier, best: int) -> ExhaustiveState:
    """Nothing below the limit is left: search up to a higher one, unless that is as much as the best plan takes."""
    proved = min(state.limit, best)
    below, before = state.passed
    rise = 2 * state.rise if below < 2 * before else state.rise
    limit = proved + max(1, int(rise * proved))
    state = replace(state, position=frontier.start, rise=rise, passed=(0, below))
    return replace(state, proved=proved, limit=limit, ended=proved == best)


def _simulate(state: ExhaustiveState, numbers: tuple[int, ...]) -> tuple[ExhaustiveState, float]:
    """Simulate a plan, and keep it where it is the fastest; also gives its step time."""
    cost = state.evaluation.move_to(state.layers.of(numbers))
    known = max(state.known, state.fragments.keep(numbers, state.simulation))
    state = replace(state, proposals=state.proposals + 1, known=known)
    if cost < state.best_cost:
        state = replace(state, best=numbers, best_cost=cost, accepted=state.accepted + 1)
    return state, cost
