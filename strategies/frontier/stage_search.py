"""Stages on top: pipelines of equally many processors a stage, whose stages are frontiers.

An *arrangement* is a number of stages, an order and a number of micro-batches. Of each stage a *cell* is the frontier
of its operators on its processors, with what is in flight by the order:

    1f1b, 2 stages, 4 micro-batches      stage 0     stage 1
    in flight                            2           1              times what a micro-batch leaves for backward
    rounds                               5           5              times one micro-batch of the stage, waiting counted
    once                                                            what weights move between home and use, and updates

Cells are put together as maxima: a processor's memory is its own stage's, and every stage has as many rounds as the
slowest lasts. Of all places where the graph is cut, and all arrangements, what no other beats is the frontier, so it is
exact in this model, within what each cell is: the larger of two maxima keeps a ratio.

What crosses into a stage is a part of its cell (see `stage_border`). The graph is cut behind seams (see `seam`), of
which those are taken that cut its time most evenly, at most MOST_CUTS.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.pipeline_order.named_order import named_order
from maniple.operators.pipeline_order.stage_graph import StageGraph
from maniple.operators.plan.plan import StagePlan
from maniple.process.error import RequestError
from maniple.strategies.frontier.additive_model import Model, Terms
from maniple.strategies.frontier.algebra import maxima, reduce
from maniple.strategies.frontier.full_split import full_splits
from maniple.strategies.frontier.gap_search import solve
from maniple.strategies.frontier.homes import weight_plan
from maniple.strategies.frontier.own_price import Turns
from maniple.strategies.frontier.seam import again_in_turns, seams
from maniple.strategies.frontier.stage_border import StageBorder
from maniple.strategies.interface.layer import weights_of
from maniple.strategies.interface.placement import complete
from maniple.strategies.interface.space import Space
from maniple.strategies.optcnn.additive_cost import AdditiveCost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import OperatorPlan, Plan, WeightPlan
    from maniple.operators.rules.rule import BoundFactor
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.frontier.additive_model import Term
    from maniple.strategies.frontier.algebra import Columns
    from maniple.strategies.frontier.weighted_sum import Found
    from maniple.strategies.interface.space import OperatorSpace
    from maniple.strategies.interface.strategy import Problem

__all__: list[str] = []

ORDERS = ("1f1b", "zb_h1", "zb_h2", "gpipe")
"""What is compared: orders of a chain of stages with a flush. Others hold more, in as many rounds, by this model."""
MOST_CUTS = 7
"""So many places are compared at which a stage may end; a pipeline has at most one stage more."""
MOST_ROUNDS = 4
"""So many micro-batches are compared for each stage, at most, in powers of two."""

Group = tuple[tuple[int, ...], tuple[int, ...]]
"""The processors of a stage, and those of the one before it; of the first stage, of the second, if there is one."""
Stage = tuple[int, int, "Found"]
"""The first operator, one past the last, and how they are cut."""


@final
@dataclass(frozen=True, slots=True)
class Arrangement:
    """How many stages take turns, and how.

    Args:
        stages: how many.
        order: its name.
        micro_batches: into how many parts the samples are cut.
    """

    stages: int
    order: str
    micro_batches: int

    def turns(self) -> tuple[Turns, ...]:
        """By stage how often operators take their turn."""
        chain = StageGraph.chain(self.stages)
        found = named_order(self.order, chain, self.micro_batches)
        rounds = len(found.ticks(chain)) * self.micro_batches / len(found.lanes[0])
        return tuple(Turns(self.micro_batches, rounds, flying) for flying in found.in_flight())


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


def arrangements(problem: Problem) -> tuple[Arrangement, ...]:
    """All that are compared: of those that the model cannot tell apart, the first.

    Args:
        problem: the graph and the machine.
    """
    processors, batch = len(problem.machine.processors), problem.graph.batch
    found: list[Arrangement] = []
    stages = 1
    while processors % stages == 0 and stages <= min(MOST_CUTS, len(cuts_of(problem.graph))) + 1:
        counts = [stages << power for power in range(MOST_ROUNDS.bit_length())]
        for count in (count for count in counts if 1 < count <= batch):
            known = set[tuple[Turns, ...]]()
            for order in ORDERS if stages > 1 else ORDERS[:1]:
                one = Arrangement(stages, order, count)
                if not any(all(map(_no_worse, turns, one.turns())) for turns in known):
                    known.add(one.turns())
                    found.append(one)
        stages *= 2
    return tuple(found)


def cuts_of(graph: Graph) -> tuple[int, ...]:
    """The operators before which a stage may begin: behind a seam, or where there is none, those with weights.

    Args:
        graph: the graph.
    """
    places = sorted(seam + 1 for seam in seams(graph))
    if not places:
        places = [node.id for node in graph.nodes[1:] if weights_of(graph, node)]
    return tuple(place for place in places if 0 < place < len(graph.nodes))


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
        self._cells: dict[tuple[int, int, Group, Turns], tuple[Found, ...]] = {}
        self._borders: dict[tuple[Group, Turns], StageBorder] = {}
        self._alike: dict[object, Group] = {}
        self._inexact: set[int] = set()
        self._bounds = self._find_bounds()

    @property
    def inexact(self) -> tuple[int, ...]:
        """The operators that kept a choice in some cell."""
        return tuple(sorted(self._inexact))

    def points(self, arrangement: Arrangement) -> list[Staged]:
        """The frontier of an arrangement: memory ascending, ticks descending.

        Args:
            arrangement: how many stages, and how they take turns.
        """
        bounds, turns, count = self._bounds, arrangement.turns(), arrangement.stages
        last = len(bounds) - 1
        # By where they begin, the best of the stages from one on.
        best: dict[int, list[Staged]] = {last: [Staged(0, 0, arrangement, ())]}
        for stage in reversed(range(count)):
            group = self.group(count, stage)
            starts = range(stage, last - (count - stage) + 1) if stage else range(1)
            found: dict[int, list[Staged]] = {}
            for start in starts:
                ends = range(start + 1, last - (count - stage - 1) + 1) if stage < count - 1 else range(last, last + 1)
                parts = [
                    (
                        self._cell(bounds[start], bounds[end], group, turns[stage]),
                        bounds[start],
                        bounds[end],
                        best[end],
                    )
                    for end in ends
                    if end in best
                ]
                found[start] = _together(parts, arrangement)
            best = found
        return best[0]

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
            (priced, _), own = self.group(count, number), self._processors(count, number)
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
            terms = self.terms(everyone, Turns())
            spent = [0, *accumulate(int(terms.own(number)[1].min()) for number in range(whole))]
            places = _most_even(places, spent, MOST_CUTS)
        return [0, *places, whole]

    def _processors(self, stages: int, stage: int) -> tuple[int, ...]:
        each = len(self._problem.machine.processors) // stages
        return tuple(range(stage * each, (stage + 1) * each))

    def group(self, stages: int, stage: int) -> Group:
        """The first processors, with those beside them, that are like those of a stage.

        Args:
            stages: how many there are.
            stage: which one.
        """
        beside = stage - 1 if stage else min(1, stages - 1)
        own = self._processors(stages, stage), self._processors(stages, beside) if stages > 1 else ()
        return self._alike.setdefault((len(own[0]), _likeness(self._problem.machine, (*own[0], *own[1]))), own)

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
            self._terms[key] = Terms(cost, again_in_turns(self._problem.graph, self._again, count), turns)
        return self._terms[key]

    def _cell(self, first: int, last: int, group: Group, turns: Turns) -> tuple[Found, ...]:
        """The frontier of some operators on some processors."""
        key = first, last, group, turns
        if key not in self._cells:
            solution = solve(self.model(first, last, group, turns), self._epsilon, self._cores)
            self._inexact |= {first + operator for operator in solution.inexact}
            self._cells[key] = solution.points
        return self._cells[key]

    def model(self, first: int, last: int, group: Group, turns: Turns) -> Model:
        """The model of a stage.

        Args:
            first: its first operator.
            last: one past its last.
            group: its processors, and those of the stage beside it.
            turns: how often they take their turn.
        """
        terms = self.terms(group[0], turns)
        own: tuple[Term, ...] = tuple(terms.own(number) for number in range(first, last))
        if group[1]:
            own = self.border(group, turns).added(own, first)
        within = [(writer, reader) for writer, reader in terms.cost.edges if first <= writer and reader < last]
        return Model(own, {(writer - first, reader - first): terms.edge((writer, reader)) for writer, reader in within})

    def border(self, group: Group, turns: Turns) -> StageBorder:
        """What a stage gets from beside it.

        Args:
            group: its processors, and those of the stage beside it.
            turns: how often they take their turn.
        """
        key = group, turns
        if key not in self._borders:
            self._borders[key] = StageBorder(self.terms(group[0], turns), *group)
        return self._borders[key]


def _allowed(own: OperatorSpace, factors: Sequence[BoundFactor], within: tuple[int, ...]) -> OperatorSpace:
    """The choices of an operator of a micro-batch on some processors that its whole batch has, too."""
    both = zip(own.factors, factors, strict=True)
    cut = tuple(replace(mine, splittable=mine.splittable and rule.splittable) for mine, rule in both)
    return replace(own, factors=cut, within=within)


def _most_even(places: Sequence[int], spent: Sequence[int], count: int) -> tuple[int, ...]:
    """So many of the places, each the nearest to its share of the time of those that are left to it.

    Args:
        places: where a stage may end, ascending; at least as many as are wanted.
        spent: the time of all operators before each.
        count: how many are wanted.
    """
    found, begin = list[int](), 0
    for part in range(count):
        aim = spent[-1] * (part + 1) // (count + 1)
        left = range(begin, len(places) - (count - part - 1))
        nearest = min(left, key=lambda number: abs(spent[places[number]] - aim))
        found.append(places[nearest])
        begin = nearest + 1
    return tuple(found)


def _together(
    parts: Sequence[tuple[tuple[Found, ...], int, int, Sequence[Staged]]], arrangement: Arrangement
) -> list[Staged]:
    """What nothing beats of the maxima of a stage and of those that follow it, over all places where it may end."""
    if not parts:
        raise RequestError("stages: expected at least one place where a stage may end")
    found = list[Staged]()
    for cell, first, last, rest in parts:
        mine, others = maxima(_columns(cell), _columns(rest))
        for own, other in zip(mine.tolist(), others.tolist(), strict=True):
            one, more = cell[own], rest[other]
            memory, ticks = max(one.memory, more.memory), max(one.ticks, more.ticks)
            found.append(Staged(memory, ticks, arrangement, ((first, last, one), *more.stages)))
    return [found[place] for place in reduce(*_columns(found)).tolist()]


def _columns(points: Sequence[Found] | Sequence[Staged]) -> Columns:
    """The memory and the ticks of points."""
    memory, ticks = (np.array([getattr(point, axis) for point in points], np.int64) for axis in ("memory", "ticks"))
    return memory, ticks


def _no_worse(one: Turns, other: Turns) -> bool:
    return one.rounds <= other.rounds and one.flying <= other.flying


def _moved(processors: Sequence[int], moved: dict[int, int]) -> tuple[int, ...]:
    return tuple(moved[processor] for processor in processors)


def _likeness(machine: Machine, processors: Sequence[int]) -> object:
    """What tells processors from others: what they, their memories and the ways between them reach."""
    each = [replace(machine.processor(processor), id=0, memory=0) for processor in processors]
    own = [machine.memory_of(processor) for processor in processors]
    return tuple(map(repr, each)), _memory_likeness(machine, own)


def _memory_likeness(machine: Machine, memories: Sequence[int]) -> object:
    """What tells memories, given by processor, from others."""
    numbers = {memory: place for place, memory in enumerate(dict.fromkeys(memories))}
    held = [repr(replace(machine.memories[memory], id=0, rank=0, host=0)) for memory in numbers]
    ways = tuple(
        tuple(machine.routes.rate(link) for link in machine.routes.route(one, other))
        for one in numbers
        for other in numbers
        if one != other
    )
    return tuple(numbers[memory] for memory in memories), tuple(held), ways
