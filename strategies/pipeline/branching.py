"""Branching pipelines: stages beside each other where the graph has branches that do not wait for each other.

    image -> a1 -> a2 \
                       join -> loss        straight   a1 | a2 | t1 | t2 join loss        four deep
    text  -> t1 -> t2 /                    branching  a1 | a2            join loss       three deep
                                                      t1 | t2

(Jeon et al., GraphPipe, ASPLOS 2025: a graph taken apart into series and parallel parts, whose stages follow its
topology, so that fewer micro-batches are under way.) A series is a row of units: single nodes, or blocks of branches
side by side. A stage takes whole units in a row; or a block's branches are cut each by itself, and whole branches may
share a stage. Under a bound of what a stage may take, the fewest devices are found from the last unit back; the bound
is bisected. Of small graphs all stages that wait in no circle are looked at, too, whatever branches they follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product
from math import inf, prod
from operator import add
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

from maniple.strategies.pipeline.ideals import Links, enumerate_ideals
from maniple.strategies.pipeline.linear_order import ORDERS, Mask, mask_of, series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from maniple.strategies.pipeline.cost_graph import CostGraph
    from maniple.strategies.pipeline.linear_order import Unit
    from maniple.strategies.pipeline.stage_costs import Floats

__all__: list[str] = []

ROUNDS = 40
"""So often the bound is bisected, at most."""
CLOSE = 1e-6
"""The relative gap at which that ends."""
LONGEST = 8
"""Rows of so many units beyond a bound are not made longer."""
MOST_IDEALS, MOST_WORK = 200, 20_000_000
"""Stages in any place are looked at in graphs of at most so many ideals, and so many pairs of them for all that can be
left of each kind and all that a stage can take."""


class Load(NamedTuple):
    """What a stage takes of a mini-batch on one device of a kind.

    Args:
        shared_s: seconds of work that replicas share.
        each_s: seconds of work that each of them has: what every micro-batch takes however small.
        moved_s: seconds of what it sends, or of what it is sent, whichever is longer; replicas share it.
    """

    shared_s: float
    each_s: float = 0.0
    moved_s: float = 0.0

    def on(self, replicas: int) -> float:
        """Seconds of a mini-batch on so many devices: transfers go on beside work."""
        return max(self.shared_s / replicas + self.each_s, self.moved_s / replicas)


class Cut(NamedTuple):
    """A stage.

    Args:
        nodes: its nodes.
        replicas: the devices that share its samples.
        kind: which devices these are, by number.
    """

    nodes: Mask
    replicas: int
    kind: int = 0


@final
@dataclass(frozen=True, slots=True)
class Kind:
    """Devices that can stand for each other.

    Args:
        count: how many there are.
        load: what a stage of some nodes takes on one of them; it is asked for the same again and again.
        fits: whether one of them has room for a stage of some nodes.
    """

    count: int
    load: Callable[[Mask], Load]
    fits: Callable[[Mask], bool]


def branching(
    graph: CostGraph, kinds: Sequence[Kind], devices: int | None = None, *, replicate: bool = False
) -> tuple[Cut, ...]:
    """The stages whose slowest is fastest, of all that `branchings` finds."""
    return branchings(graph, kinds, devices, replicate=replicate)[-1]


def branchings(
    graph: CostGraph, kinds: Sequence[Kind], devices: int | None = None, *, replicate: bool = False
) -> list[tuple[Cut, ...]]:
    """Stages on at most so many devices, each time with a faster slowest stage.

    First come those that follow the graph's branches, then those of lines, and then, of graphs so small that all can
    be looked at, the best of all stages that wait in no circle; each where it is better than what came before.

    Args:
        graph: the graph.
        kinds: the devices.
        devices: the most to use; by default all.
        replicate: whether several devices of a kind may share a stage, and its load.

    Returns:
        The stages of each, every one after those that it reads from; one stage where nothing is better, or fits.
    """
    most, everything = devices or sum(each.count for each in kinds), (1 << len(graph.nodes)) - 1
    able = [kind for kind, own in enumerate(kinds) if own.fits(everything)]
    alone_s, alone = min((kinds[kind].load(everything).on(1), kind) for kind in able or range(len(kinds)))
    high, found = alone_s if able else inf, list[tuple[Cut, ...]]()
    # A stage may do better with the end of one branch and the beginning of the next, as a straight pipeline has it.
    for row in (series(graph), *(tuple(order(graph)) for order in ORDERS)):
        better = _of_row(row, kinds, most, high, replicate=replicate)
        if better:
            found.append(better)
            high = _slowest_s(kinds, better)
    best = _of_all(graph, kinds, most, replicate=replicate)
    if best and _slowest_s(kinds, best) < high * (1 - CLOSE):
        found.append(best)
    return found or [(Cut(everything, 1, alone),)]


def _slowest_s(kinds: Sequence[Kind], cuts: Sequence[Cut]) -> float:
    return max(kinds[cut.kind].load(cut.nodes).on(cut.replicas) for cut in cuts)


def _of_row(
    row: Sequence[Unit], kinds: Sequence[Kind], devices: int, high: float, *, replicate: bool
) -> tuple[Cut, ...]:
    """The stages of a row of units whose slowest is fastest, by bisection; none where that is not below a time."""
    best: tuple[Cut, ...] = ()
    low, bound = 0.0, high * (1 - CLOSE)
    for _ in range(ROUNDS):
        ways = _Fewest(bound, tuple(kinds), devices, replicate).of_row(row)
        found = min(ways, key=lambda way: sum(way.counts), default=None)
        if found is not None:
            best = found.cuts
            high = _slowest_s(kinds, best)
        elif bound >= high * (1 - CLOSE):
            break  # nothing of this row is better
        else:
            low = bound
        if high - low <= CLOSE * high:
            break
        bound = (low + high) / 2
    return best


def _of_all(graph: CostGraph, kinds: Sequence[Kind], devices: int, *, replicate: bool) -> tuple[Cut, ...]:
    """The stages whose slowest is fastest, of all that wait in no circle; none where they are too many, or none fit.

    Where none waits for a later one, all stages up to each are an ideal. So they are a chain of nested ideals, and what
    is left to do after an ideal, on so many devices of each kind, has a least slowest stage:

        best(i, counts)  =  min over ideals j that hold i, kinds k and replicas r:
                                max( load of j without i on r of k,  best(j, counts without r of k) )
    """
    lattice = enumerate_ideals(Links.of(len(graph.nodes), graph.edges), MOST_IDEALS)
    ways = [(kind, r) for kind, own in enumerate(kinds) for r in range(1, (own.count if replicate else 1) + 1)]
    sizes = [range(own.count + 1) for own in kinds]
    if lattice is None or prod(map(len, sizes)) * len(ways) * len(lattice) ** 2 > MOST_WORK:
        return ()
    ideals = [sum(1 << node for node in lattice.nodes(place)) for place in range(len(lattice))]
    loads = np.full((len(ways), len(ideals), len(ideals)), inf)
    for one, other in combinations(range(len(ideals)), 2):
        nodes = ideals[other] & ~ideals[one]
        if not ideals[one] & ~ideals[other]:
            taken = [own.load(nodes) if own.fits(nodes) else Load(inf) for own in kinds]
            loads[:, one, other] = [taken[kind].on(replicas) for kind, replicas in ways]
    done, rows = np.where(np.arange(len(ideals)) + 1 < len(ideals), inf, 0.0), np.arange(len(ideals))
    best: dict[tuple[int, ...], Floats] = {}
    then: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for counts in sorted(product(*sizes), key=sum):
        least, end, way = done, np.zeros(len(ideals), np.int64), np.zeros(len(ideals), np.int64)
        for number, (kind, replicas) in enumerate(ways):
            rest = _without(counts, kind, replicas)
            if rest in best:
                slowest = np.maximum(loads[number], best[rest])
                at = slowest.argmin(axis=1)
                better = slowest[rows, at] < least
                least = np.where(better, slowest[rows, at], least)
                end, way = np.where(better, at, end), np.where(better, number, way)
        best[counts], then[counts] = least, list(zip(end.tolist(), way.tolist(), strict=True))
    value, _, left = min((float(best[own][0]), sum(own), own) for own in best if sum(own) <= devices)
    cuts, place = list[Cut](), 0
    while value < inf and place + 1 < len(ideals):
        after, number = then[left][place]
        kind, replicas = ways[number]
        cuts.append(Cut(ideals[after] & ~ideals[place], replicas, kind))
        left, place = _without(left, kind, replicas), after
    return tuple(cuts)


def _without(counts: tuple[int, ...], kind: int, taken: int) -> tuple[int, ...]:
    """So many devices of each kind, without some of one."""
    return tuple(own - taken * (place == kind) for place, own in enumerate(counts))


class Way(NamedTuple):
    """Stages of some units, and the devices that they take.

    Args:
        counts: of each kind.
        cuts: the stages.
        shared: those of whole branches, which others may still join.
    """

    counts: tuple[int, ...]
    cuts: tuple[Cut, ...] = ()
    shared: tuple[Cut, ...] = ()

    def before(self, later: Way) -> Way:
        """These stages, and then others."""
        counts = tuple(map(add, self.counts, later.counts))
        return Way(counts, (*self.cuts, *later.cuts), (*self.shared, *later.shared))


@final
@dataclass(frozen=True, slots=True)
class _Fewest:
    """The ways with the fewest devices of which no stage takes longer than a bound.

    Of one kind there is one; of several all of which none needs as few of every kind as another.

    Args:
        bound: seconds.
        kinds: the devices.
        devices: the most to use.
        replicate: whether several may share a stage.
    """

    bound: float
    kinds: tuple[Kind, ...]
    devices: int
    replicate: bool

    def of_row(self, units: Sequence[Unit]) -> list[Way]:
        """The ways of a row of units."""
        count = len(units)
        best: list[list[Way]] = [*([] for _ in range(count)), [Way((0,) * len(self.kinds))]]
        for start in range(count - 1, -1, -1):
            nodes: Mask = 0
            for end in range(start + 1, count + 1):
                nodes |= mask_of(units[end - 1 : end])
                alone = self.of_stage(nodes)
                if not alone and end - start > LONGEST:  # longer rows may send less, but compute more
                    break
                self._join(best[start], alone, best[end])
            self._join(best[start], self.of_block(units[start]), best[start + 1])
        return best[0]

    def of_stage(self, nodes: Mask) -> list[Way]:
        """The ways of one stage: on each kind that can take it."""
        found = []
        for kind, own in enumerate(self.kinds):
            load, most = own.load(nodes), min(own.count, self.devices) if self.replicate else 1
            replicas = next((count for count in range(1, most + 1) if load.on(count) <= self.bound), 0)
            if replicas and own.fits(nodes):
                found.append(Way(self._counts(kind, replicas), (Cut(nodes, replicas, kind),)))
        return found

    def of_block(self, block: Unit) -> list[Way]:
        """The ways of a block's branches: whole ones together where they fit, the largest first; others each cut."""
        if isinstance(block, int):
            return []
        ways = [Way((0,) * len(self.kinds))]
        slow = self.kinds[0].load
        for branch in sorted(block.branches, key=lambda branch: (-slow(mask_of(branch)).on(1), mask_of(branch))):
            nodes, longer = mask_of(branch), list[Way]()
            for way in ways:
                for more in self._with_branch(way, branch, nodes):
                    if self._lacks(longer, more.counts):
                        self._put(longer, more)
            ways = longer
        return [Way(way.counts, (*way.cuts, *way.shared)) for way in ways]

    def _with_branch(self, way: Way, branch: Sequence[Unit], nodes: Mask) -> Iterator[Way]:
        """A way with a branch more: in the first stage that can take it, or else in one of its own, or cut."""
        shared = way.shared
        for at, own in enumerate(shared):
            if self._takes(own.kind, own.nodes | nodes):
                joined = own._replace(nodes=own.nodes | nodes)
                yield way._replace(shared=(*shared[:at], joined, *shared[at + 1 :]))
                return
        kinds = [kind for kind in range(len(self.kinds)) if self._takes(kind, nodes)]
        for kind in kinds:
            yield way.before(Way(self._counts(kind, 1), (), (Cut(nodes, 1, kind),)))
        if not kinds:
            for inner in self.of_row(branch):
                yield way.before(inner)

    def _takes(self, kind: int, nodes: Mask) -> bool:
        """Whether one device of a kind is done with a stage in time."""
        return self.kinds[kind].load(nodes).on(1) <= self.bound and self.kinds[kind].fits(nodes)

    def _counts(self, kind: int, count: int) -> tuple[int, ...]:
        return tuple(count if place == kind else 0 for place in range(len(self.kinds)))

    def _join(self, front: list[Way], firsts: Sequence[Way], rests: Sequence[Way]) -> None:
        """Note all of some ways before all of others."""
        for first in firsts:
            for rest in rests:
                if self._lacks(front, tuple(map(add, first.counts, rest.counts))):
                    self._put(front, first.before(rest))

    def _lacks(self, front: list[Way], counts: tuple[int, ...]) -> bool:
        """Whether there are so many devices, and no way needs as few of every kind."""
        there = all(own <= kind.count for own, kind in zip(counts, self.kinds, strict=True))
        return there and sum(counts) <= self.devices and not any(_within(way.counts, counts) for way in front)

    def _put(self, front: list[Way], way: Way) -> None:
        """Note a way in the place of those that need as many of every kind."""
        front[:] = [*(other for other in front if not _within(way.counts, other.counts)), way]


def _within(counts: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Whether there are no more of any kind."""
    return all(own <= other for own, other in zip(counts, others, strict=True))
