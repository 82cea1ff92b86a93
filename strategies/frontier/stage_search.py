"""Stages on top: pipelines of equally many processors a stage, whose stages are frontiers.

Of each stage of an *arrangement* (see there) a *cell* is the frontier of its operators on its processors, where what
forward leaves for backward is held for each micro-batch in flight, and what weights move between home and use, and
their updates, come once. Cells are put together as maxima: a processor's memory is its own stage's, and every stage has
as many rounds as the slowest lasts.

What crosses into a stage is a part of its cell: what it reads of earlier ones (see `stage_border`), and what weights
cost that other stages use, too (see `stage_weight`), which depends on who those are. So of all places where the graph
is cut, those by which the same stages share the same weights are searched together, from the last stage on:

    w is used by operators 0, 4 and 8      stages 0, 1, 2 share it      stages 0 and 2
    places of 3 stages                     0..1 | 2..4 | 5..8           0..4 | 5..6 | 7..8

Of all places, and all arrangements, what no other beats is the frontier, so it is exact in this model, within what each
cell is: the larger of two maxima keeps a ratio.

What plans that are known stand for is not searched for again. A pipeline needs at least what the least choices of all
operators of its stages sum up to, stage by stage, wherever the others are cut (`least_of_wholes`): where a known plan
needs at most 1 + epsilon times as much, and is no less lean or fast than the ends of what is known, that stage has no
cell. Of a cell only those points are looked for that may be of a pipeline that no known plan stands for (`Rivals`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, combinations, pairwise
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.plan.plan import StagePlan
from maniple.strategies.frontier.additive_model import Model, Terms
from maniple.strategies.frontier.algebra import maxima, reduce, union
from maniple.strategies.frontier.arrangement import MOST_CUTS, cuts_of, least_of_wholes, most_even
from maniple.strategies.frontier.full_split import full_splits
from maniple.strategies.frontier.gap_search import solve
from maniple.strategies.frontier.homes import weight_plan
from maniple.strategies.frontier.own_price import Turns
from maniple.strategies.frontier.seam import again_in_turns
from maniple.strategies.frontier.stage_border import StageBorder
from maniple.strategies.frontier.stage_group import AlikeProcessors, Processors, StageGroup, shared_weights
from maniple.strategies.frontier.stage_weight import StageWeight
from maniple.strategies.frontier.weighted_sum import Rivals
from maniple.strategies.interface.placement import complete
from maniple.strategies.interface.space import Space
from maniple.strategies.optcnn.additive_cost import AdditiveCost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.operators.plan.plan import OperatorPlan, Plan, WeightPlan
    from maniple.operators.rules.rule import BoundFactor
    from maniple.strategies.frontier.additive_model import Term
    from maniple.strategies.frontier.algebra import Columns
    from maniple.strategies.frontier.arrangement import Arrangement, Least
    from maniple.strategies.frontier.weighted_sum import Found
    from maniple.strategies.interface.space import OperatorSpace
    from maniple.strategies.interface.strategy import Problem

__all__: list[str] = []

Stage = tuple[int, int, "Found"]
"""The first operator, one past the last, and how they are cut."""
Pattern = tuple[frozenset[int], ...]
"""By stage the weights that others use, too."""


@final
@dataclass(frozen=True, slots=True)
class Staged:
    """A pipeline by the model.

    Args:
        memory: bytes of the stage that holds most.
        ticks: nanoseconds of the stage that takes longest, waiting counted.
        arrangement: how its stages take turns.
        stages: the stages.
    """

    memory: int
    ticks: int
    arrangement: Arrangement
    stages: tuple[Stage, ...]


@final
class StageSearch:
    """Finds the frontiers of arrangements.

    Args:
        problem: the graph and the machine.
        again: of every operator whether its results may be computed again.
        epsilon: by what share a point may need more memory, and more time, than one that it stands for.
        cores: how many threads eliminate.
    """

    def __init__(self, problem: Problem, again: Sequence[bool], epsilon: float, cores: int) -> None:
        self._problem, self._again, self._epsilon, self._cores = problem, tuple(again), epsilon, cores
        self._costs: dict[tuple[tuple[int, ...], int], AdditiveCost] = {}
        self._terms: dict[tuple[tuple[int, ...], Turns], Terms] = {}
        self._first_terms: dict[tuple[tuple[int, ...], int], Terms] = {}
        self._cells: dict[object, tuple[Least, tuple[Found, ...]]] = {}
        self._leasts: dict[object, Least] = {}
        self._borders: dict[object, StageBorder] = {}
        self._weights: dict[object, StageWeight] = {}
        self._alike = AlikeProcessors(problem.machine)
        self._inexact: set[int] = set()
        self._bounds = self._find_bounds()

    @property
    def inexact(self) -> tuple[int, ...]:
        """The operators that kept a choice in some cell."""
        return tuple(sorted(self._inexact))

    def points(self, arrangement: Arrangement, known: Columns | None = None) -> list[Staged]:
        """The frontier of an arrangement: memory ascending, ticks descending; without what known plans stand for.

        Args:
            arrangement: how many stages, and how they take turns.
            known: memory and ticks of plans that are known, a frontier; none by default.
        """
        cost = self._cost(self._alike.first(self._processors(arrangement.stages, 0))[0], arrangement.micro_batches)
        shared, everywhere = shared_weights(cost.operators, self._bounds), range(len(self._bounds))
        patterns = dict.fromkeys(
            tuple(shared[stage] for stage in pairwise((0, *places, everywhere[-1])))
            for places in combinations(everywhere[1:-1], arrangement.stages - 1)
        )
        found, known = list[Staged](), known or union()
        for pattern in patterns:
            more = self._points(arrangement, pattern, shared, known)
            found, known = [*found, *more], union(known, columns_of(more))
        return [found[place] for place in reduce(*columns_of(found)).tolist()]

    def _points(
        self,
        arrangement: Arrangement,
        pattern: Pattern,
        shared: Mapping[tuple[int, int], frozenset[int]],
        known: Columns,
    ) -> list[Staged]:
        """The frontier of the places where stages share weights in one way.

        Args:
            arrangement: how many stages, and how they take turns.
            pattern: what each shares with others.
            shared: by where one begins and ends what it would share.
            known: memory and ticks of plans that are known.
        """
        bounds, turns, count = self._bounds, arrangement.turns(), arrangement.stages
        groups = [self.group(count, stage, pattern) for stage in range(count)]

        def least(stage: int, start: int, end: int) -> Least:
            return self._least(bounds[start], bounds[end], groups[stage], turns[stage])

        floors = least_of_wholes(pattern, shared, len(bounds) - 1, least)
        kept = {place: floor for place, floor in floors.items() if not Rivals(*known, floor).stand(self._epsilon)}
        # A cell may be that of several stages and places: what any of them may need is looked for.
        together: dict[object, Least] = {}
        for (stage, start, end), floor in kept.items():
            key = self._key(bounds[start], bounds[end], groups[stage], turns[stage])
            before = together.get(key, floor)
            together[key] = min(before[0], floor[0]), min(before[1], floor[1])
        # By where they begin, the best of the stages from one on.
        best: dict[int, list[Staged]] = {len(bounds) - 1: [Staged(0, 0, arrangement, ())]}
        for stage in reversed(range(count)):
            found = dict[int, list[Staged]]()
            for start in sorted({start for number, start, _ in kept if number == stage}):
                ends = [end for end in best if (stage, start, end) in kept]
                places = [(bounds[start], bounds[end]) for end in ends]
                cells = []
                for place in places:
                    floor = together[self._key(*place, groups[stage], turns[stage])]
                    cells.append(self._cell(*place, groups[stage], turns[stage], Rivals(*known, floor)))
                if ends:
                    found[start] = _together(cells, places, [best[end] for end in ends], arrangement)
            best = found
        return best.get(0, [])

    def plan(self, point: Staged, strategy: str) -> Plan:
        """A point as a plan.

        Args:
            point: the point.
            strategy: who asks.
        """
        graph, count = self._problem.graph, point.arrangement.stages
        operators: list[tuple[str, OperatorPlan]] = []
        homes: dict[str, WeightPlan] = {}
        stages = []
        for number, (first, last, found) in enumerate(point.stages):
            own = self._processors(count, number)
            (priced,) = self._alike.first(own)
            cost = self._cost(priced, point.arrangement.micro_batches)
            moved = dict(zip(priced, own, strict=True))
            stages.append(StagePlan(tuple(node.name for node in graph.nodes[first:last])))
            for node, chosen, home in zip(graph.nodes[first:last], found.chosen, found.homes, strict=True):
                choices = cost.operators.choices[node.id]
                choice = choices[chosen % len(choices)]
                plan = cost.operators.plan(node.id, choice)
                on = _moved(plan.processors, moved)
                operators.append((node.name, replace(plan, processors=on, recompute=chosen >= len(choices))))
                for tensor in cost.operators.weights(node.id) if home else ():
                    lives = weight_plan(cost.operators, tensor, node.id, choice, home)
                    if lives is not None:
                        at = _moved(lives.processors, moved)
                        homes[graph.tensors[tensor].name] = replace(lives, processors=at)
        whole = complete(self._problem, strategy, tuple(operators))
        weights = tuple((name, homes.get(name, home)) for name, home in whole.weights)
        whole = replace(whole, weights=weights, stages=tuple(stages) if count > 1 else ())
        return whole.with_pipeline(order=point.arrangement.order, micro_batches=point.arrangement.micro_batches)

    def _find_bounds(self) -> list[int]:
        """Where stages may begin and end."""
        places, whole = cuts_of(self._problem.graph), len(self._problem.graph.nodes)
        if len(places) > MOST_CUTS:
            everyone = tuple(range(len(self._problem.machine.processors)))
            terms = self.terms(self._alike.first(everyone)[0], Turns())
            spent = [0, *accumulate(int(terms.own(number)[1].min()) for number in range(whole))]
            places = most_even(places, spent, MOST_CUTS)
        return [0, *places, whole]

    def _processors(self, stages: int, stage: int) -> tuple[int, ...]:
        each = len(self._problem.machine.processors) // stages
        return tuple(range(stage * each, (stage + 1) * each))

    def group(self, stages: int, stage: int, pattern: Pattern = ()) -> StageGroup:
        """The processors of a stage, and of those that it has something to do with.

        Args:
            stages: how many there are.
            stage: which one.
            pattern: what each shares with others; nothing by default.
        """
        sharing = [
            (tensor, [other for other, mine in enumerate(pattern) if tensor in mine and other != stage])
            for tensor in sorted(pattern[stage] if pattern else ())
        ]
        return StageGroup(
            self._processors(stages, stage),
            self._processors(stages, stage - 1) if stage else (),
            tuple((tensor, tuple(self._processors(stages, other) for other in others)) for tensor, others in sharing),
        )

    def _cost(self, within: tuple[int, ...], micro_batches: int) -> AdditiveCost:
        """The times of a micro-batch on some processors."""
        key = within, micro_batches
        if key not in self._costs:
            batch = self._problem.graph.batch
            part = self._problem.graph.with_batch(-(-batch // micro_batches)) if micro_batches > 1 else None
            small = replace(self._problem, graph=part or self._problem.graph)
            space = Space.of(small.graph, len(within))
            # A dimension joined with one sample may be cut; of a plan, whose rule has all samples, it may not.
            rules = Space.of(self._problem.graph, len(within)).operators
            both = zip(space.operators, rules, strict=True)
            space = replace(space, operators=tuple(_allowed(own, rule.factors, within) for own, rule in both))
            choices = [full_splits(space, number) for number in range(len(space.names))]
            self._costs[key] = AdditiveCost(small, space, choices, at_once=True)
        return self._costs[key]

    def terms(self, within: tuple[int, ...], turns: Turns) -> Terms:
        """The terms of all operators on some processors.

        Args:
            within: the processors.
            turns: how often operators take their turn.
        """
        key = within, turns
        if key not in self._terms:
            cost, count = self._cost(within, turns.micro_batches), turns.micro_batches
            like = self._first_terms.get((within, count))
            found = Terms(cost, again_in_turns(self._problem.graph, self._again, count), turns, like)
            self._first_terms.setdefault((within, count), found)
            self._terms[key] = found
        return self._terms[key]

    def _key(self, first: int, last: int, group: StageGroup, turns: Turns) -> object:
        """What decides what a stage takes."""
        return first, last, self._alike.likeness(group), turns

    def _cell(self, first: int, last: int, group: StageGroup, turns: Turns, rivals: Rivals) -> tuple[Found, ...]:
        """The frontier of some operators on some processors, without what its rivals stand for."""
        key = self._key(first, last, group, turns)
        floor, points = self._cells.get(key, (None, ()))
        # Of plans that were known before, all are known still; what was looked for above a lower floor is enough.
        if floor is None or floor[0] > rivals.floor[0] or floor[1] > rivals.floor[1]:
            solution = solve(self.model(first, last, group, turns), self._epsilon, self._cores, rivals=rivals)
            self._inexact |= {first + operator for operator in solution.inexact}
            points = solution.points
            self._cells[key] = rivals.floor, points
        return points

    def _least(self, first: int, last: int, group: StageGroup, turns: Turns) -> Least:
        """The least bytes and nanoseconds of all operators of a stage, each by itself."""
        key = self._key(first, last, group, turns)
        if key not in self._leasts:
            own = self.model(first, last, group, turns).own
            self._leasts[key] = sum(int(size.min()) for size, _ in own), sum(int(tick.min()) for _, tick in own)
        return self._leasts[key]

    def model(self, first: int, last: int, group: StageGroup, turns: Turns) -> Model:
        """The model of a stage.

        Args:
            first: its first operator.
            last: one past its last.
            group: where it runs.
            turns: how often its operators take their turn.
        """
        terms = self.terms(self._alike.first(group.own)[0], turns)
        own: tuple[Term, ...] = tuple(terms.own(number) for number in range(first, last))
        if group.beside:
            own = self.border(group.own, group.beside, turns).added(own, first)
        for tensor, others in group.sharing:
            own = self.weight(tensor, group.own, others, turns).added(own, first)
        within = [(writer, reader) for writer, reader in terms.cost.edges if first <= writer and reader < last]
        return Model(own, {(writer - first, reader - first): terms.edge((writer, reader)) for writer, reader in within})

    def border(self, own: Processors, beside: Processors, turns: Turns) -> StageBorder:
        """What a stage gets from beside it.

        Args:
            own: its processors.
            beside: those of the stage before it.
            turns: how often its operators take their turn.
        """
        own, beside = key = self._alike.first(own, beside)
        if (key, turns) not in self._borders:
            self._borders[key, turns] = StageBorder(self.terms(own, turns), beside)
        return self._borders[key, turns]

    def weight(self, tensor: int, own: Processors, others: tuple[Processors, ...], turns: Turns) -> StageWeight:
        """What a weight costs that other stages use, too.

        Args:
            tensor: the weight.
            own: the processors of the stage.
            others: those of each other one that uses it.
            turns: how often the stage's operators take their turn.
        """
        own, *rest = key = self._alike.first(own, *others)
        if (tensor, key, turns) not in self._weights:
            self._weights[tensor, key, turns] = StageWeight(self.terms(own, turns), tensor, own, rest)
        return self._weights[tensor, key, turns]


def _allowed(own: OperatorSpace, factors: Sequence[BoundFactor], within: tuple[int, ...]) -> OperatorSpace:
    """The choices of an operator of a micro-batch on some processors that its whole batch has, too."""
    both = zip(own.factors, factors, strict=True)
    cut = tuple(replace(mine, splittable=mine.splittable and rule.splittable) for mine, rule in both)
    return replace(own, factors=cut, within=within)


def _together(
    cells: Sequence[tuple[Found, ...]],
    places: Sequence[tuple[int, int]],
    rests: Sequence[Sequence[Staged]],
    arrangement: Arrangement,
) -> list[Staged]:
    """What nothing beats of the maxima of a stage and of those that follow it, over all places where it may end.

    Args:
        cells: of each place the frontier of the stage.
        places: its first operator, and one past its last.
        rests: of each place the frontier of the stages that follow.
        arrangement: how they take turns.
    """
    found = list[Staged]()
    for cell, place, rest in zip(cells, places, rests, strict=True):
        mine, others = maxima(columns_of(cell), columns_of(rest))
        for own, other in zip(mine.tolist(), others.tolist(), strict=True):
            one, more = cell[own], rest[other]
            memory, ticks = max(one.memory, more.memory), max(one.ticks, more.ticks)
            found.append(Staged(memory, ticks, arrangement, ((*place, one), *more.stages)))
    return [found[place] for place in reduce(*columns_of(found)).tolist()]


def columns_of(points: Sequence[Found | Staged]) -> Columns:
    """The memory and the ticks of points.

    Args:
        points: by the model.
    """
    memory, ticks = (np.array([getattr(point, axis) for point in points], np.int64) for axis in ("memory", "ticks"))
    return memory, ticks


def _moved(processors: Sequence[int], moved: dict[int, int]) -> tuple[int, ...]:
    return tuple(moved[processor] for processor in processors)
