"""Branching pipelines: stages beside each other where the graph has branches that do not wait for each other.

    image -> a1 -> a2 \
                       join -> loss        straight   a1 | a2 | t1 | t2 join loss        four deep
    text  -> t1 -> t2 /                    branching  a1 | a2            join loss       three deep
                                                      t1 | t2

(Jeon et al., GraphPipe, ASPLOS 2025: a graph taken apart into series and parallel parts, whose stages follow its
topology, so that fewer micro-batches are under way.) A series is a row of units: single nodes, or blocks of branches
side by side. A stage takes whole units in a row; or a block's branches are cut each by itself, and whole branches may
share a stage. Under a bound of what a stage may take, the fewest devices are found from the last unit back; the bound
is bisected.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil
from operator import add
from typing import TYPE_CHECKING, NamedTuple, final

from maniple.strategies.pipeline.linear_order import ORDERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from maniple.strategies.pipeline.cost_graph import CostGraph

__all__: list[str] = []

ROUNDS = 40
"""So often the bound is bisected, at most."""
CLOSE = 1e-6
"""The relative gap at which that ends."""
LONGEST = 8
"""Rows of so many units beyond a bound are not made longer."""

Mask = int
"""Nodes as bits."""


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
        load_s: seconds that a stage of some nodes takes on one of them.
        fits: whether one of them has room for a stage of some nodes.
    """

    count: int
    load_s: Callable[[Mask], float]
    fits: Callable[[Mask], bool]


@final
@dataclass(frozen=True, slots=True)
class Block:
    """Branches side by side.

    Args:
        branches: each a row of units.
    """

    branches: tuple[tuple[Unit, ...], ...]


Unit = int | Block
"""A node, or a block of branches."""


def mask_of(units: Iterable[Unit]) -> Mask:
    """The nodes of some units."""
    found = 0
    for unit in units:
        found |= 1 << unit if isinstance(unit, int) else sum(map(mask_of, unit.branches))
    return found


def series(graph: CostGraph, nodes: Sequence[int] | None = None) -> tuple[Unit, ...]:
    """A graph, or some nodes of it, as a row of units.

    Nodes that all others are before or after are units by themselves; what lies between two of them falls apart into
    branches, each a row again. What has neither is taken in topological order, node by node.

    Args:
        graph: the graph.
        nodes: which nodes, ascending; all by default.
    """
    inside = list(range(len(graph.nodes)) if nodes is None else nodes)
    own = set(inside)
    edges = [(a, b) for a, b in graph.edges if a in own and b in own]
    parts = _components(inside, edges)
    if len(parts) > 1:
        return (Block(tuple(series(graph, part) for part in parts)),)
    above = _reach(inside, edges)
    trunk = _trunk(inside, above)
    if not trunk:
        return tuple(inside)
    on_it = sum(1 << node for node in trunk)
    between: list[list[int]] = [[] for _ in range(len(trunk) + 1)]
    for node in inside:
        if not on_it >> node & 1:
            between[(above[node] & on_it).bit_count()].append(node)
    units: list[Unit] = []
    for number, others in enumerate(between):
        units += series(graph, others) if others else ()
        units += trunk[number : number + 1]
    return tuple(units)


def branching(
    graph: CostGraph, kinds: Sequence[Kind], devices: int | None = None, *, replicate: bool = False
) -> tuple[Cut, ...]:
    """The stages on at most so many devices whose slowest is fastest, as far as they follow the graph's branches.

    Args:
        graph: the graph.
        kinds: the devices.
        devices: the most to use; by default all.
        replicate: whether several devices of a kind may share a stage, and its load.

    Returns:
        The stages, each after those that it reads from.
    """
    known = tuple(Kind(each.count, cache(each.load_s), cache(each.fits)) for each in kinds)
    most, everything = devices or sum(each.count for each in kinds), (1 << len(graph.nodes)) - 1
    able = [kind for kind, own in enumerate(known) if own.fits(everything)] or range(len(known))
    high, alone = min((known[kind].load_s(everything), kind) for kind in able)
    best: tuple[Cut, ...] = (Cut(everything, 1, alone),)
    # A stage may do better with the end of one branch and the beginning of the next, as a straight pipeline has it.
    for row in (series(graph), *(tuple(order(graph)) for order in ORDERS)):
        low, bound = 0.0, high * (1 - CLOSE)
        for _ in range(ROUNDS):
            ways = _Fewest(bound, known, most, replicate).of_row(row)
            found = min(ways, key=lambda way: sum(way.counts), default=None)
            if found is not None:
                best = found.cuts
                high = max(known[cut.kind].load_s(cut.nodes) / cut.replicas for cut in best)
            elif bound >= high * (1 - CLOSE):
                break  # nothing of this row is better
            else:
                low = bound
            if high - low <= CLOSE * high:
                break
            bound = (low + high) / 2
    return best


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
            replicas = max(1, ceil(own.load_s(nodes) / self.bound))
            if replicas <= (min(own.count, self.devices) if self.replicate else 1) and own.fits(nodes):
                found.append(Way(self._counts(kind, replicas), (Cut(nodes, replicas, kind),)))
        return found

    def of_block(self, block: Unit) -> list[Way]:
        """The ways of a block's branches: whole ones together where they fit, the largest first; others each cut."""
        if isinstance(block, int):
            return []
        ways = [Way((0,) * len(self.kinds))]
        slow = self.kinds[0].load_s
        for branch in sorted(block.branches, key=lambda branch: (-slow(mask_of(branch)), mask_of(branch))):
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
        return self.kinds[kind].load_s(nodes) <= self.bound and self.kinds[kind].fits(nodes)

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


def _components(nodes: Iterable[int], edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The nodes that hang together, however edges lead."""
    home = {node: node for node in nodes}

    def root(node: int) -> int:
        while home[node] != node:
            home[node] = node = home[home[node]]
        return node

    for a, b in edges:
        first, second = sorted((root(a), root(b)))
        home[second] = first
    found: dict[int, list[int]] = {}
    for node in home:
        found.setdefault(root(node), []).append(node)
    return list(found.values())


def _reach(nodes: Sequence[int], edges: Sequence[tuple[int, int]]) -> dict[int, Mask]:
    """For every node those before it."""
    above = dict.fromkeys(nodes, 0)
    for source, target in edges:  # sorted, so that all that comes before a source is known
        above[target] |= above[source] | 1 << source
    return above


def _trunk(nodes: Sequence[int], above: dict[int, Mask]) -> list[int]:
    """The nodes that all others are before or after, in order."""
    after = dict.fromkeys(nodes, 0)
    for node in nodes:
        for other in nodes:
            after[other] += above[node] >> other & 1
    return [node for node in nodes if above[node].bit_count() + after[node] == len(nodes) - 1]
