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
from math import ceil, inf
from typing import TYPE_CHECKING, NamedTuple, final

from maniple.strategies.pipeline.linear_order import ORDERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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
    """

    nodes: Mask
    replicas: int


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
    graph: CostGraph, devices: int, load_s: Callable[[Mask], float], *, replicate: bool = False
) -> tuple[Cut, ...]:
    """The stages on at most so many devices whose slowest is fastest, as far as they follow the graph's branches.

    Args:
        graph: the graph.
        devices: how many there are.
        load_s: seconds that a stage of some nodes takes on one device.
        replicate: whether several devices may share a stage, and its load.

    Returns:
        The stages, each after those that it reads from.
    """
    load, everything = cache(load_s), (1 << len(graph.nodes)) - 1
    high = load(everything)
    best: tuple[Cut, ...] = (Cut(everything, 1),)
    # A stage may do better with the end of one branch and the beginning of the next, as a straight pipeline has it.
    for row in (series(graph), *(tuple(order(graph)) for order in ORDERS)):
        low, bound = 0.0, high * (1 - CLOSE)
        for _ in range(ROUNDS):
            found = _Fewest(bound, load, devices if replicate else 1).of_row(row)
            if found is not None and sum(cut.replicas for cut in found) <= devices:
                best, high = found, max(load(cut.nodes) / cut.replicas for cut in found)
            elif bound >= high * (1 - CLOSE):
                break  # nothing of this row is better
            else:
                low = bound
            if high - low <= CLOSE * high:
                break
            bound = (low + high) / 2
    return best


@final
@dataclass(frozen=True, slots=True)
class _Fewest:
    """The stages with the fewest devices of which none takes longer than a bound.

    Args:
        bound: seconds.
        load: of a stage of some nodes on one device.
        most: so many devices may share a stage.
    """

    bound: float
    load: Callable[[Mask], float]
    most: int

    def of_row(self, units: Sequence[Unit]) -> tuple[Cut, ...] | None:
        """The stages of a row of units; None where there are none."""
        count = len(units)
        best: list[tuple[float, tuple[Cut, ...]]] = [*((inf, ()) for _ in range(count)), (0, ())]
        for start in range(count - 1, -1, -1):
            nodes: Mask = 0
            for end in range(start + 1, count + 1):
                nodes |= mask_of(units[end - 1 : end])
                replicas = ceil(self.load(nodes) / self.bound)
                if replicas > self.most:  # longer rows may send less, but compute more
                    if end - start > LONGEST:
                        break
                    continue
                used = max(1, replicas) + best[end][0]
                if used < best[start][0]:
                    best[start] = used, (Cut(nodes, max(1, replicas)), *best[end][1])
            inner = self.of_block(units[start])
            if inner is not None:
                used = sum(cut.replicas for cut in inner) + best[start + 1][0]
                if used < best[start][0]:
                    best[start] = used, (*inner, *best[start + 1][1])
        return None if best[0][0] == inf else best[0][1]

    def of_block(self, block: Unit) -> tuple[Cut, ...] | None:
        """The stages of a block's branches: whole ones together where they fit, the largest first; others each cut."""
        if isinstance(block, int):
            return None
        found: list[Cut] = []
        shared: list[Mask] = []
        for branch in sorted(block.branches, key=lambda branch: (-self.load(mask_of(branch)), mask_of(branch))):
            nodes = mask_of(branch)
            if self.load(nodes) > self.bound:
                cuts = self.of_row(branch)
                if cuts is None:
                    return None
                found += cuts
                continue
            place = next((at for at, own in enumerate(shared) if self.load(own | nodes) <= self.bound), len(shared))
            shared[place:] = [nodes | (shared[place] if place < len(shared) else 0), *shared[place + 1 :]]
        return (*found, *(Cut(nodes, 1) for nodes in shared))


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
