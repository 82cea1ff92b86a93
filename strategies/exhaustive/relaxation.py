"""The relaxation: sums over layers and pairs of layers that no step can be shorter than.

Take a path from an operator to the last one whose backward pass needs its own forward pass, and back by the gradients;
`term` says what each step of it adds. For every path, every operator s that it may begin with and k that it may go back
to, and every processor p:

    load     all that p has to do, and all that a link has to carry
    return   earliest from s to the turn and back to k, and then what k, and all that k depends on, leave p to do
    turned   the same with the latest terms, where every task of k waits for each of the operator after it
    update   latest from s to the turn and back to k, and then the updates of the weights that k was the last to use

All are sums of terms of a layer or of two, so the least rest of each for any choices of the first layers is found by
elimination (see `frontier`).

    two linear layers on processors 0 and 1, 3 us forward and 5 us backward each, way 2 us     load 8 us on each
    from the first to the second and back                                                      3 + 2 + 3 + 5 + 2 + 5 us
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.exhaustive.term import (
    BACK_ANY,
    BACK_EARLIEST,
    BACK_LATEST,
    BETWEEN,
    EARLIEST,
    LATEST,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.strategies.exhaustive.published_layer import Layers
    from maniple.strategies.exhaustive.term import Table, Terms, Users
    from maniple.strategies.optcnn.placed_operators import PlacedOperators

__all__: list[str] = []

PATHS = 8
"""At most so many paths are looked at."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A bound in nanoseconds, by the choices of layers.

    Args:
        least: what does not depend on any choice.
        alone: for a layer, by its choice.
        pairs: for two layers, ascending, by theirs.
    """

    least: float
    alone: dict[int, Table] = field(default_factory=dict)
    pairs: dict[tuple[int, int], Table] = field(default_factory=dict)


@final
class Relaxation:
    """The bounds of a graph.

    Args:
        graph: the graph.
        layers: what is decided.
        terms: all of them made.
        cost: what the terms come from.
        launch_ns: what a task takes at least.
        ports: the processors that fetch the loss.
    """

    def __init__(
        self,
        graph: Graph,
        layers: Layers,
        terms: Terms,
        cost: PlacedOperators,
        launch_ns: float,
        ports: frozenset[int],
    ) -> None:
        self._layers, self._terms, self._launch, self._ports = layers, terms, launch_ns, ports
        self._before = _ancestors(graph)
        # Where an operator gives a part of a gradient, not every task waits for each operator after it.
        self._whole = not any(cost.partial(*edge) for edge in cost.edges)
        self._first = {operator: (users, at) for users in terms.users for at, operator in enumerate(users.operators)}
        loads = [self._load(lane) for lane in range(terms.lanes)]
        self.bounds = [bound for bound in loads if bound.alone or bound.pairs]
        seen: set[object] = set()
        for path in _turning(graph, cost):
            for start in range(len(path)):
                if start == 0 or path[start] in self._first:
                    for end in range(len(path)):
                        key = path[start], path[min(start, end) :], path[end]
                        if key not in seen:
                            seen.add(key)
                            self.bounds += self._along(path, start, end)

    def _load(self, lane: int) -> Bound:
        """What a processor has to do, a fetch of the loss included, or what a link has to carry."""
        terms = self._terms
        bound = Bound(self._launch if lane in self._ports else 0.0)
        for operator, tables in terms.work.items() if lane < terms.processors else ():
            for work in tables:
                self._add(bound, (operator,), work[:, lane])
        for edge, moved in terms.moved.items():
            if moved[..., lane].any():
                self._add(bound, edge, moved[..., lane])
        for users in terms.users:
            held = users.work[..., lane] + users.moved[..., lane]
            if held.any():
                self._add_shared(bound, users, held)
        return bound

    def _along(self, path: Sequence[int], start: int, end: int) -> Iterator[Bound]:
        """The bounds by a path."""
        if end == len(path) - 1 or self._whole:
            for processor in range(self._terms.processors):
                bound = self._chain(path, start, end, latest=False)
                yield self._left(bound, path[end], processor, fetched=end == len(path) - 1 and processor in self._ports)
        if end < len(path) - 1:
            edge = path[end], path[end + 1]
            if self._whole:
                for processor in range(self._terms.processors):
                    bound = self._chain(path, start, end, latest=True)
                    self._add(bound, edge, self._terms.ways[edge][BETWEEN])
                    yield self._left(bound, path[end], processor, fetched=False)
            for users in self._terms.users:
                if users.operators[0] == path[end]:
                    bound = self._chain(path, start, end, latest=True)
                    self._add(bound, edge, self._terms.ways[edge][BACK_ANY])
                    self._add_shared(bound, users, users.last)
                    yield bound

    def _chain(self, path: Sequence[int], start: int, end: int, *, latest: bool) -> Bound:
        """From the first launch of an operator to the turn, and back to the end of the operator after another."""
        forward, back = (LATEST, BACK_LATEST) if latest else (EARLIEST, BACK_EARLIEST)
        # An operator that reads an input waits for its arrival.
        bound = Bound(self._launch if start == 0 else 0.0)
        if path[start] in self._first:
            users, at = self._first[path[start]]
            self._add_shared(bound, users, users.first[at][..., 0 if latest else 1])
        else:
            self._add(bound, (path[start],), self._terms.spans[path[start]][0 if latest else 1])
        for edge in pairwise(path[start:]):
            self._add(bound, edge, self._terms.ways[edge][forward])
        if end < len(path) - 1:
            self._add(bound, (path[-1],), self._terms.spans[path[-1]][2])
            for edge in pairwise(path[end + 1 :]):
                self._add(bound, edge, self._terms.ways[edge][back])
        return bound

    def _left(self, bound: Bound, operator: int, processor: int, *, fetched: bool) -> Bound:
        """Add what is left to do once an operator's backward pass may begin."""
        operators = self._before[operator] | {operator}
        for other in sorted(operators):
            self._add(bound, (other,), self._terms.work[other][1][:, processor])
        for users in self._terms.users:
            if operators.intersection(users.operators):
                self._add_shared(bound, users, users.work[..., processor])
        more = Bound(bound.least + self._launch, bound.alone, bound.pairs)
        return more if fetched else bound

    def _add(self, bound: Bound, operators: tuple[int, ...], table: Table) -> None:
        """Add a table by the choices of one operator, or of two neighbours."""
        places = [self._layers.place[operator] for operator in operators]
        if len(set(places)) == 1:
            own = table if len(places) == 1 else np.diagonal(table)
            bound.alone[places[0]] = bound.alone.get(places[0], 0.0) + own
        elif places[0] < places[1]:
            bound.pairs[places[0], places[1]] = bound.pairs.get((places[0], places[1]), 0.0) + table
        else:
            bound.pairs[places[1], places[0]] = bound.pairs.get((places[1], places[0]), 0.0) + table.T

    def _add_shared(self, bound: Bound, users: Users, table: Table) -> None:
        """Add a table by the choices of the leaders of some weights' users: of three it counts for nothing."""
        if len(users.places) == 1:
            bound.alone[users.places[0]] = bound.alone.get(users.places[0], 0.0) + table
        elif len(users.places) == 2:
            pair = users.places[0], users.places[1]
            bound.pairs[pair] = bound.pairs.get(pair, 0.0) + table


def _turning(graph: Graph, cost: PlacedOperators) -> list[tuple[int, ...]]:
    """Some of the paths to the loss, up to the last operator whose backward pass needs its own forward pass."""
    producer = None if graph.loss_tensor is None else graph.producer(graph.loss_tensor)
    found = []
    for path in _paths(cost.edges, 0 if producer is None else producer.id):
        turns = [place for place, operator in enumerate(path) if cost.turns(operator)]
        if turns:
            found.append(path[: turns[-1] + 1])
    return sorted(set(found))


def _paths(edges: Sequence[tuple[int, int]], loss: int) -> Iterator[tuple[int, ...]]:
    """Some of the paths that end at the loss, ascending."""
    into: dict[int, list[int]] = {}
    for writer, reader in edges:
        into.setdefault(reader, []).append(writer)
    waiting: list[tuple[int, ...]] = [(loss,)]
    found = 0
    while waiting and found < PATHS:
        path = waiting.pop()
        if path[0] in into:
            waiting += [(writer, *path) for writer in into[path[0]]]
        else:
            found += 1
            yield path


def _ancestors(graph: Graph) -> list[frozenset[int]]:
    """For every operator those that it depends on, itself left out."""
    found: list[frozenset[int]] = []
    for node in graph.nodes:
        producers = [graph.producer(operand) for operand in node.operands if operand is not None]
        own = {producer.id for producer in producers if producer is not None}
        found.append(frozenset(own.union(*(found[producer] for producer in sorted(own)))))
    return found
