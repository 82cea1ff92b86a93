"""Arrangements: how many stages take turns, in which order, in how many micro-batches, and where a stage may end.

    1f1b, 2 stages, 4 micro-batches      stage 0     stage 1
    in flight                            2           1              times what a micro-batch leaves for backward
    rounds                               5           5              times one micro-batch of the stage, waiting counted

A graph is cut behind seams (see `seam`); where it has none, before operators with weights. Of many such places those
are taken that cut its time most evenly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from maniple.operators.pipeline_order.named_order import named_order
from maniple.operators.pipeline_order.stage_graph import StageGraph
from maniple.strategies.frontier.own_price import Turns
from maniple.strategies.frontier.seam import seams
from maniple.strategies.interface.layer import weights_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.strategies.interface.strategy import Problem

__all__: list[str] = []

ORDERS = ("1f1b", "zb_h1", "zb_h2", "gpipe")
"""What is compared: orders of a chain of stages with a flush. Others hold more, in as many rounds, by this model."""
MOST_CUTS = 7
"""So many places are compared at which a stage may end; a pipeline has at most one stage more."""
Least = tuple[int, int]
"""Bytes and nanoseconds that something needs at least."""
Place = tuple[int, int, int]
"""The number of a stage, and of the places where it begins and ends."""
MOST_ROUNDS = 4
"""So many micro-batches are compared for each stage, at most, in powers of two."""


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


def most_even(places: Sequence[int], spent: Sequence[int], count: int) -> tuple[int, ...]:
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


def least_of_wholes(
    pattern: Sequence[frozenset[int]],
    shared: Mapping[tuple[int, int], frozenset[int]],
    last: int,
    least: Callable[[int, int, int], Least],
) -> dict[Place, Least]:
    """What every pipeline needs at least that has a stage at some place, of all places where one may be.

    Memory is that of the stage that holds most, and time that of the slowest, so a pipeline needs at least what each
    stage does, and what the stages before it and behind it do where these are cut best, by memory or by time.

    Args:
        pattern: by stage the weights that others use, too.
        shared: by where one begins and ends what it would share.
        last: the last place; the first one is 0.
        least: what a stage needs at least, by its number and where it begins and ends.
    """
    count = len(pattern)
    # By stage and place what the stages before it that end there need at least, and those from it on that begin there.
    before: list[dict[int, Least]] = [{0: (0, 0)}, *({} for _ in pattern)]
    behind: list[dict[int, Least]] = [*({} for _ in pattern), {last: (0, 0)}]
    own: dict[Place, Least] = {}
    for stage in range(count):
        for start in before[stage]:
            for end in range(start + 1, last - (count - stage - 1) + 1):
                if shared[start, end] == pattern[stage] and (stage < count - 1 or end == last):
                    own[stage, start, end] = least(stage, start, end)
                    _keep(before[stage + 1], end, _most(before[stage][start], own[stage, start, end]))
    for stage, start, end in reversed(own):
        if end in behind[stage + 1]:
            _keep(behind[stage], start, _most(behind[stage + 1][end], own[stage, start, end]))
    return {
        (stage, start, end): _most(needs, before[stage][start], behind[stage + 1][end])
        for (stage, start, end), needs in own.items()
        if end in behind[stage + 1]
    }


def _most(*needs: Least) -> Least:
    return max(memory for memory, _ in needs), max(ticks for _, ticks in needs)


def _keep(known: dict[int, Least], place: int, needs: Least) -> None:
    """Keep the least of what is needed at a place, of memory and of ticks by themselves."""
    memory, ticks = known.get(place, needs)
    known[place] = min(memory, needs[0]), min(ticks, needs[1])


def _no_worse(one: Turns, other: Turns) -> bool:
    return one.rounds <= other.rounds and one.flying <= other.flying
