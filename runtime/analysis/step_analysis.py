"""Analysis of a region's uses as a step that repeats.

Uses of boxes, folded by one operator, are analysed in columns. What columns do not hold (index spaces of several boxes,
simultaneous coherence, distances that a mapper made up, more than five long axes, contributions that stay unfolded,
very many tiles or cells: see `column_analysis`) is analysed use by use, as launches are when they come. Both give the
same fragments, and what is refused is refused in the words of the second.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from maniple.regions.columns.storage import ADDS
from maniple.runtime.analysis import column_analysis
from maniple.runtime.analysis.analysis_cache import AnalysisCache
from maniple.runtime.analysis.dependence import Node, RegionAnalysis, apart
from maniple.runtime.analysis.fragment import Fragment, HostDistance, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.privilege import Privilege
    from maniple.regions.rectangle import Rect
    from maniple.regions.validity import Validity
    from maniple.runtime.analysis.fragment import FragmentKey, Table
    from maniple.runtime.analysis.instance_table import InstanceTable
    from maniple.runtime.analysis.placed_use import AnalysedUse, Move, PlacedUse
    from maniple.runtime.schedule.schedule import InstanceKind

__all__: list[str] = []

# In fewer uses a region is not looked at for states that recur.
MANY_USES = 32


def analyse(key: FragmentKey, near: Callable[[int, int], int], *, leaves: bool = True) -> Fragment:
    """Analyse a region's uses as a step that repeats.

    Args:
        key: the uses.
        near: how far memories are from one another.
        leaves: whether somebody wants to know at once what is valid after a step.

    Raises:
        RequestError: interfering tasks, or a read before the first write.
    """
    if isinstance(near, HostDistance):
        found = column_analysis.analyse(key, near.hosts, leaves=leaves)
        if found is not None:
            return found
    return analyse_by_use(key, near)


def analyse_by_use(key: FragmentKey, near: Callable[[int, int], int]) -> Fragment:
    """Do as `analyse` does, one use after the other."""
    region = RegionAnalysis(key.bounds, dict(key.home), near=near)
    for memory, rects in key.home:
        for rect in rects:
            region.reserve(memory, rect)
    names = _Names(key)
    found = list(_analyse_uses(key, region))
    for ordinal, use in enumerate(found):
        names.add(ordinal, use)
    edges = names.pairs([edge for use in found for edge in use.edges])
    instances = tuple(region.extents.values())
    carried = names.pairs(list(_carry(key, found, region.instances)))
    return names.fragment(instances, edges, carried, region.validity)


class _Names:
    """The columns of a fragment, while uses are added to them.

    Args:
        key: the uses.
    """

    def __init__(self, key: FragmentKey) -> None:
        self._nodes: dict[tuple[int, int], int] = {}
        self._moves: list[Move] = []
        self._serves: list[int] = []
        self._spaces: dict[IndexSpace, int] = {}
        self._tasks: list[tuple[int, ...]] = []
        self._uses = len(key.uses)

    def add(self, ordinal: int, use: AnalysedUse) -> None:
        """Add the use of a number."""
        self._moves += use.moves
        self._serves += [ordinal] * len(use.moves)
        for point, _, access in use.accesses:
            self._nodes[ordinal, point] = len(self._tasks)
            writes = ADDS if access.adds else int(access.writes)
            self._tasks.append((ordinal, point, self._space(access.rect), access.instance, writes))

    def _space(self, space: IndexSpace) -> int:
        return self._spaces.setdefault(space, len(self._spaces))

    def pairs(self, edges: Sequence[tuple[Node, Node]]) -> Table:
        """Give edges between nodes by their numbers; a row does not wait for itself."""
        named = [(self._number(before), self._number(after)) for before, after in edges]
        return table([pair for pair in named if pair[0] != pair[1]], 2)

    def _number(self, node: Node) -> int:
        return len(self._tasks) + node.item if node.use < 0 else self._nodes[node.use, node.item]

    def fragment(
        self, instances: tuple[tuple[int, InstanceKind, Rect], ...], edges: Table, carried: Table, leaves: Validity
    ) -> Fragment:
        """Give the fragment."""
        accesses: list[tuple[int, ...]] = []
        transfers: list[tuple[int, ...]] = []
        pieces: list[tuple[int, ...]] = []
        parts: list[int] = []
        for number, move in enumerate(self._moves):
            accesses += [(number, self._space(a.rect), a.instance, int(a.writes), a.slot) for a in move.accesses]
            transfers += [(number, self._space(p.rect), p.source, p.target, p.feeds, p.after) for p in move.transfers]
            for piece in move.pieces:
                first = len(parts)
                parts += piece.parts
                pieces.append((number, self._space(piece.rect), piece.memory, piece.target, first, len(parts)))
        return Fragment(
            table(self._tasks, 5),
            self._uses,
            np.asarray(self._serves, dtype=np.int64),
            np.asarray([move.kind for move in self._moves], dtype=np.int64),
            np.asarray([move.processor for move in self._moves], dtype=np.int64),
            np.asarray([move.elements for move in self._moves], dtype=np.int64),
            tuple([move.op or (move.pieces[0].op if move.pieces else "") for move in self._moves]),
            table(accesses, 5),
            table(transfers, 6),
            table(pieces, 6),
            np.asarray(parts, dtype=np.int64),
            table([(memory, kind, self._space(rect), rect.volume) for memory, kind, rect in instances], 4),
            tuple(self._spaces),
            edges,
            carried,
            lambda: leaves,
        )


def _analyse_uses(key: FragmentKey, region: RegionAnalysis) -> Iterator[AnalysedUse]:
    """Analyse the uses; where they are many, from memory once the region is in a state again that it was in before."""
    cache = AnalysisCache({0: region})
    for privilege, tasks in key.uses:
        analyse_one = partial(_one, region, privilege, tasks)
        if len(key.uses) < MANY_USES or cache.derived > MANY_USES + cache.followed:
            yield from analyse_one()
        else:
            yield from cache.launch((privilege, tasks), (0,), analyse_one)


def _one(region: RegionAnalysis, privilege: Privilege, tasks: Sequence[PlacedUse]) -> tuple[AnalysedUse, ...]:
    return (region.use_again(0, privilege, tasks),)


def _carry(key: FragmentKey, found: Sequence[AnalysedUse], left: InstanceTable) -> Iterator[tuple[Node, Node]]:
    """Give what the next step waits for: it moves and uses the same, and each of its writes hides what came before.

    Args:
        key: the uses.
        found: what they come to.
        left: who used which elements last in the step before; used up.
    """
    number = 0
    for ordinal, ((privilege, tasks), use) in enumerate(zip(key.uses, found, strict=True)):
        if not left.remembers:
            return
        for move in use.moves:
            yield from left.follow(Node(1, -1, number), move.accesses)
            number += 1
        together = {task.point: task.shared for task in tasks}
        nodes = [(Node(1, ordinal, point), (access,), together[point]) for point, _, access in use.accesses]
        if not (apart(tasks) or privilege.accumulates):
            for node, used, shared in nodes:
                yield from left.depend(node, used, shared=shared)
        for node, used, shared in nodes:
            yield from left.follow(node, used, shared=shared)
