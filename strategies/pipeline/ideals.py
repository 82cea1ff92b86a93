"""Ideals: the node sets closed under predecessors, which are the prefixes that a pipeline can be cut after.

The bijection of ideals and antichains is pipeline partitioning's state space (Narayanan et al., PipeDream, SOSP 2019,
section 3.1; Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020).

    a -> b -> d      ideals: {} {a} {ab} {ac} {abc} {abcd}
    a -> c -> d      of {ab} the tensors of a and b cross the cut, of {abc} those of b and c only
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
import numpy.typing as npt

from maniple.strategies.pipeline import ideal_kernels as kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []

Words = npt.NDArray[np.uint64]
Index = npt.NDArray[np.int32]
Ticks = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """The edges of a graph in compressed rows, both ways.

    Args:
        count: nodes.
        below: where the predecessors of each node start in ``sources``, shape (count + 1,).
        sources: predecessors, row by row.
        above: where the successors of each node start in ``targets``, shape (count + 1,).
        targets: successors, row by row.
    """

    count: int
    below: Index
    sources: Index
    above: Index
    targets: Index

    @staticmethod
    def of(count: int, edges: Sequence[tuple[int, int]]) -> Links:
        """The links of ``count`` nodes in topological order with those edges."""
        table = np.array(edges, dtype=np.int32).reshape(-1, 2)
        below, sources = _rows(table[:, 1], table[:, 0], count)
        above, targets = _rows(table[:, 0], table[:, 1], count)
        return Links(count, below, sources, above, targets)

    @property
    def words(self) -> int:
        """64-bit words of a set of nodes."""
        return max(1, (self.count + 63) // 64)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """What nodes hand to each other: every tensor has one producer, a size, and readers.

    Args:
        made: where the tensors of each node start; tensors are numbered by producer. Shape (nodes + 1,).
        read_rows: where the tensors that each node reads start in ``read``, shape (nodes + 1,).
        read: tensors, row by row.
        reader_rows: where the readers of each tensor start in ``readers``, shape (tensors + 1,).
        readers: nodes, row by row.
        sizes: bytes of each tensor.
    """

    made: Index
    read_rows: Index
    read: Index
    reader_rows: Index
    readers: Index
    sizes: Ticks

    @staticmethod
    def of(count: int, made: Sequence[tuple[int, int, Sequence[int]]]) -> Tensors:
        """The tensors of ``count`` nodes.

        Args:
            count: nodes.
            made: (producer, bytes, readers other than the producer) of each tensor, by producer.
        """
        producers = np.array([producer for producer, _, _ in made], dtype=np.int32)
        starts, _ = _rows(producers, producers, count)
        pairs = [(tensor, reader) for tensor, (_, _, readers) in enumerate(made) for reader in readers]
        table = np.array(pairs, dtype=np.int32).reshape(-1, 2)
        read_rows, read = _rows(table[:, 1], table[:, 0], count)
        reader_rows, readers = _rows(table[:, 0], table[:, 1], len(made))
        sizes = np.array([size for _, size, _ in made], dtype=np.int64)
        return Tensors(starts, read_rows, read, reader_rows, readers, sizes)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Lattice:
    """All ideals of a graph, by size; each but the last is joined to the ideals that have one node more.

    Args:
        links: the graph.
        members: the ideals as bit sets, shape (ideals, words); the first is empty, the last is the whole graph.
        first: where the steps from each ideal start in ``larger``, shape (ideals + 1,).
        larger: the ideals with one node more, row by row.
        parent: an ideal with one node less, -1 for the empty one.
        added: the node that it lacks.
    """

    links: Links
    members: Words
    first: Index
    larger: Index
    parent: Index
    added: Index

    def __len__(self) -> int:
        return len(self.members)

    def total(self, weights: Ticks) -> Ticks:
        """The sum of some weights over each ideal.

        Args:
            weights: of each node, shape (nodes,) or (nodes, k).

        Returns:
            Shape (ideals,) or (ideals, k).
        """
        flat = np.ascontiguousarray(weights.reshape(self.links.count, -1), dtype=np.int64)
        sums: Ticks = kernels.totals(self.parent, self.added, flat)
        return sums.reshape(len(self), *weights.shape[1:])

    def crossing(self, tensors: Tensors) -> Ticks:
        """The bytes that leave each ideal: of every tensor made in it and read outside, once; shape (ideals,)."""
        found: Ticks = kernels.crossings(
            self.parent,
            self.added,
            self.members,
            tensors.made,
            tensors.read_rows,
            tensors.read,
            tensors.reader_rows,
            tensors.readers,
            tensors.sizes,
        )
        return found

    def nodes(self, ideal: int) -> tuple[int, ...]:
        """The nodes of an ideal, ascending."""
        row = self.members[ideal]
        return tuple(node for node in range(self.links.count) if int(row[node // 64]) >> (node % 64) & 1)

    def antichain(self, ideal: int) -> tuple[int, ...]:
        """The maximal nodes of an ideal, ascending: those that feed no node of it."""
        inside = self.nodes(ideal)
        held, links = set(inside), self.links
        return tuple(
            node
            for node in inside
            if not held.intersection(links.targets[links.above[node] : links.above[node + 1]].tolist())
        )

    def augment(self, ideal: int) -> tuple[int, ...]:
        """The nodes of an ideal whose outputs cross the cut, ascending: those that feed a node outside."""
        inside = self.nodes(ideal)
        held, links = set(inside), self.links
        return tuple(
            node
            for node in inside
            if not held.issuperset(links.targets[links.above[node] : links.above[node + 1]].tolist())
        )


def enumerate_ideals(links: Links, limit: int) -> Lattice | None:
    """All ideals of a graph, or None where there are more than ``limit``.

    Args:
        links: the graph, nodes in topological order.
        limit: the most ideals to hold, the empty one included.
    """
    count, members, first, larger, parent, added = kernels.enumerate_all(
        links.count, links.words, links.below, links.sources, links.above, links.targets, limit
    )
    return Lattice(links, members, first, larger, parent, added) if count <= limit else None


def chain(links: Links) -> Lattice:
    """The prefixes of the order of the nodes: the ideals of the graph made linear in that order."""
    n, words = links.count, links.words
    members = np.zeros((n + 1, words), dtype=np.uint64)
    for node in range(n):
        members[node + 1] = members[node]
        members[node + 1, node // 64] |= np.uint64(1 << (node % 64))
    steps = np.arange(n + 2, dtype=np.int32)
    return Lattice(
        links,
        members,
        np.minimum(steps, n).astype(np.int32),
        steps[1 : n + 1].copy(),
        np.arange(-1, n, dtype=np.int32),
        np.arange(-1, n, dtype=np.int32),
    )


def _rows(owners: Index, values: Index, count: int) -> tuple[Index, Index]:
    order = np.lexsort((values, owners))
    starts = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(np.bincount(owners, minlength=count), out=starts[1:])
    return starts, np.ascontiguousarray(values[order], dtype=np.int32)
