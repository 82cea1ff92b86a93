"""SOAP: Markov chain Monte Carlo over the degrees and processors of every operator, on simulated step times.

After Z. Jia, M. Zaharia, A. Aiken, Beyond Data and Model Parallelism for Deep Neural Networks (SysML 2019), section 6:
chains from known plans, each until it has not improved for a while. Then the best plan is improved operator by operator
until no change of a single one helps.

    phase    a round                                       ends
    seeds    simulates a named plan, a layering, hybrid    when all are; then the lower bound is found
             or alternation; of these the fastest is one
    chains   walks from a seed, the fastest seed first,    when no seed is left; each after so many proposals per
             and beside them a part of OptCNN's tables,    operator without a faster plan
             until its plan is one more seed; in the end
             from random plans, where the problem is small
    descent  sweeps over the choices of single operators   when no choice of any operator helps
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import TYPE_CHECKING, ClassVar, final

from maniple.strategies.bound import lower_bound_s
from maniple.strategies.optcnn.optcnn import OptCNN
from maniple.strategies.soap.chains import TEMPERING, Chains, Tempering
from maniple.strategies.soap.cost_tables import Tables
from maniple.strategies.soap.descent import Descent
from maniple.strategies.soap.evaluation import UNFIT
from maniple.strategies.soap.incumbent import Incumbent
from maniple.strategies.soap.rounds import AbstractRoundStrategy, RoundState
from maniple.strategies.soap.seeding import all_seeds, choices_of, draw, first_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.plan.plan import Plan
    from maniple.strategies.interface.parallel_search import WorkItem
    from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem
    from maniple.strategies.soap.move import Choices
    from maniple.strategies.soap.work_item import SearchItem

__all__: list[str] = []

EARLY = 1 << 14
"""So many steps of OptCNN's are made beside the first walks, for its plan is mostly the fastest seed ..."""
SHARE = 1 << 10
"""... and where it takes more, so many in each round that follows."""
RESTARTS = 16
"""So many random plans are seeds ..."""
SMALL = 512
"""... where operators times processors are at most so many: to simulate such a plan takes less than a tenth of a
second, and a budget cannot end that."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SoapState(RoundState):
    """The state of a search; see ``RoundState`` too.

    Args:
        seeds: what makes the plans that are still to be simulated before the chains begin.
        waiting: (cost, name, choices) of the seeds whose chains are still to come, the fastest first.
        restarts: how many random plans were seeds.
        tables: OptCNN's, as far as they have come, once they are begun.
        chains: between two rounds, once they have begun.
        descent: likewise, once the chains have ended.
    """

    seeds: tuple[AbstractDirectStrategy, ...] = ()
    waiting: tuple[tuple[float, str, Choices], ...] = ()
    restarts: int = 0
    tables: Tables | None = None
    chains: Chains | None = None
    descent: Descent | None = None


@final
class Soap(AbstractRoundStrategy[SoapState]):
    """Searches every operator's degrees, replicas and processors by simulated step time.

    Args:
        tempering: how the chains walk.
        share: so many steps of OptCNN's are made in a round of the chains; 0 leaves its plan out.
        restarts: so many random plans are seeds of a small problem.
    """

    name: ClassVar[str] = "soap"

    def __init__(self, tempering: Tempering = TEMPERING, share: int = SHARE, restarts: int = RESTARTS) -> None:
        self._tempering, self._share, self._restarts = tempering, share, restarts

    def load_compiled(self) -> None:
        """Compile what OptCNN's tables call, or load it."""
        if self._share:
            OptCNN().load_compiled()

    def init(self, problem: Problem) -> SoapState:
        """The state in which the first seed has been simulated."""
        evaluation = self.bench(problem)
        cost, choices = evaluation.cost, evaluation.choices
        seed, incumbent = (cost, first_name(problem), choices), Incumbent(choices, cost, 1, least=evaluation.least)
        seeds = all_seeds(problem)[1:]
        return SoapState(problem=problem, evaluation=evaluation, incumbent=incumbent, waiting=(seed,), seeds=seeds)

    def next_round(self, state: SoapState) -> SoapState:
        """The state after a round."""
        if state.seeds:
            strategy, *others = state.seeds
            state = _add_seed(state, strategy.name, choices_of(state.evaluation.space, strategy.plan(state.problem)))
            state = replace(state, seeds=tuple(others))
            if others or state.problem.costs is not None:  # the bound is by the roofline
                return state
            problem = state.problem
            return replace(state, bound_s=lower_bound_s(problem.graph, problem.machine, problem.optimizer))
        items, tables = state.searching, next((item for item in state.items if isinstance(item, Tables)), None)
        state = replace(state, incumbent=state.found, items=())
        if tables is not None:
            state = replace(state, tables=tables)
            if tables.plan is not None:
                state = _add_seed(state, OptCNN.name, choices_of(state.evaluation.space, tables.plan))
        return self._descending(state, items) if state.descent is not None else self._walking(state, items)

    def _walking(self, state: SoapState, items: Sequence[SearchItem]) -> SoapState:
        """The next round of the chains, from another seed where these have ended, or of the descent."""
        chains, found = state.chains, None
        if chains is not None and items:
            chains, found = chains.join(items)
        if found is not None:
            return replace(state, chains=chains, items=(found,))
        faster = bool(state.waiting) and chains is not None and state.waiting[0][0] < chains.best_cost
        if chains is None or faster or chains.has_ended(len(state.evaluation.space.names)):
            if not state.waiting:
                state = replace(state, chains=chains)
                if part := self._part(state):
                    return replace(state, items=part)
                if state.restarts == self._most_restarts(state):
                    return self._last(state)
                state = _restart(state)
                if not state.waiting:  # the next round draws another
                    return state
            (cost, _, choices), *others = state.waiting
            scale = chains.scale if chains is not None else cost if cost < UNFIT else 1.0
            begun = 0 if chains is None else chains.begun
            chains = Chains.at(self._tempering, scale, state.problem.seed, (choices, cost), begun)
            state = replace(state, waiting=tuple(others))
        return replace(state, chains=chains, items=(*chains.items(), *self._part(state)))

    def _most_restarts(self, state: SoapState) -> int:
        """How many random plans are seeds."""
        space = state.evaluation.space
        return self._restarts if sum(own.processors for own in space.operators) <= SMALL else 0

    def _last(self, state: SoapState) -> SoapState:
        """The descent from the best plan."""
        best = state.incumbent
        descent = Descent(best.choices, best.cost, state.evaluation.options.count)
        return replace(state, descent=descent, items=descent.items())

    def _descending(self, state: SoapState, items: Sequence[SearchItem]) -> SoapState:
        """The next round of the descent."""
        if state.descent is None:
            return state
        descent, following = state.descent.join(items)
        return replace(state, descent=descent, items=following)

    def _part(self, state: SoapState) -> tuple[WorkItem, ...]:
        """An item for some more steps of OptCNN's, unless its plan is known."""
        if self._share == 0 or state.problem.inside is not None:  # its tables know no stages
            return ()
        if state.tables is None:
            return (Tables(OptCNN().init(state.problem), EARLY),)
        return () if state.tables.plan is not None else (replace(state.tables, steps=self._share),)

    def terminate(self, state: SoapState) -> bool:
        """Whether no change of a single operator helps."""
        return state.descent is not None and state.descent.ends_with(state.items)

    def alternatives(self, state: SoapState) -> tuple[Plan, ...]:
        """The named plans, and OptCNN's, where there was time for it."""
        exact = None if state.tables is None else state.tables.plan
        return (*super().alternatives(state), *(() if exact is None else (exact,)))


def _add_seed(state: SoapState, name: str, choices: Choices | None) -> SoapState:
    """The state in which a plan is one more seed, unless the space lacks it."""
    evaluation, incumbent = state.evaluation, state.incumbent
    if choices is None:
        return replace(state, incumbent=replace(incumbent, proposals=incumbent.proposals + 1))
    evaluation.least = None
    cost = evaluation.move_to(choices)
    if cost == inf:  # stages inside which it is would no longer be those of a pipeline
        return replace(state, incumbent=replace(incumbent, proposals=incumbent.proposals + 1))
    ordered = sorted([*state.waiting, (cost, name, choices)], key=lambda seed: seed[:2])
    fastest = {seed[1]: seed for seed in reversed(ordered)}  # layerings have one name, and hybrids, and alternations
    waiting = tuple(seed for seed in ordered if fastest[seed[1]] is seed)
    return replace(state, waiting=waiting, incumbent=incumbent.add_seed(choices, cost, evaluation.least))


def _restart(state: SoapState) -> SoapState:
    """The state in which a random plan is one more seed."""
    chance = Random((state.problem.seed << 64) + state.restarts)
    return replace(_add_seed(state, "random", draw(state.evaluation.space, chance)), restarts=state.restarts + 1)
