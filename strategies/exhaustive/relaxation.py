"""The relaxation: what no plan with some choices made can be faster than.

Operators are decided in the graph's order. Take a path from an operator that reads an input to the last one whose
backward pass needs its own forward pass, and back by the gradients. Of two launches A and B that hand something over,
let way(a, b) be the longest chain of movements from a task of the one to a task of the other that waits for it. Then

    latest      the last of B ends no earlier than the last of A plus  min over a of max over b of way(a, b) + time(b)
    earliest    the first of B ends no earlier than the first of A plus  min over b of max over a of the same

since some task of B waits for the one of A that ends last, and each waits for one. Where other operators use the region
too, a way counts for nothing: what it moves may have been moved for them. The terms along a path belong to pairs of
neighbours, so the least rest of a path for each choice is found backwards. Three bounds follow:

    path        latest, with the terms of the decided operators and the least rest
    shares      what the decided operators give one processor to do; and all work, shared evenly
    return      earliest, until gradients reach the decided operators, and then what they give one processor to do
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.composite import is_composite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maniple.operators.graph import Graph
    from maniple.operators.plan import Plan
    from maniple.strategies.optcnn.additive_cost import AdditiveCost, Placed
    from maniple.strategies.simulation.use import RegionRows
    from maniple.strategies.space import Choice, Space

    Table = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

__all__: list[str] = []

PATHS = 8
"""At most so many paths are looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """A path through the operators, and its terms in nanoseconds.

    Args:
        operators: from one that reads an input to the one where it turns.
        head: of each choice of the first.
        there: for each step the forward terms, by both choices.
        back: for each step the backward terms, by both choices.
        rest: for each operator and choice the least time that follows its forward pass.
        until: the same up to when its backward pass may begin.
    """

    operators: tuple[int, ...]
    head: Table
    there: tuple[Table, ...]
    back: tuple[Table, ...]
    rest: tuple[Table, ...]
    until: tuple[Table, ...]

    @staticmethod
    def of(operators: tuple[int, ...], head: Table, terms: Sequence[tuple[Table, Table]], turn: Table) -> Path:
        """The path of some terms, (forward, backward) for each step; ``turn`` is the last one's backward pass."""
        rest, until = [turn], [np.zeros_like(turn)]
        for forward, backward in reversed(terms):
            until.append((forward + rest[-1]).min(axis=1))
            rest.append((forward + backward + rest[-1]).min(axis=1))
        there, back = tuple(forward for forward, _ in terms), tuple(backward for _, backward in terms)
        return Path(operators, head, there, back, tuple(rest[::-1]), tuple(until[::-1]))

    def so_far(self, place: int, prefix: Sequence[int]) -> tuple[Table, Table]:
        """The forward and the backward terms up to each choice of the operator at a place of the path."""
        there, back = self.head, np.zeros(len(self.head), dtype=np.int64)
        for step in range(place):
            chosen = prefix[self.operators[step]]
            there, back = there[chosen] + self.there[step][chosen], back[chosen] + self.back[step][chosen]
        return there, back


@final
class Relaxation:
    """Lower bounds, in nanoseconds, on the step time when the first operators are decided.

    Args:
        graph: the graph.
        plan: any plan of it, whose semantics count.
        space: its space.
        choices: of every operator.
        cost: the launches and regions of the same choices.
    """

    def __init__(
        self, graph: Graph, plan: Plan, space: Space, choices: Sequence[Sequence[Choice]], cost: AdditiveCost
    ) -> None:
        self._graph, self._choices, self._cost = graph, choices, cost
        self._fused = [
            [not is_composite(graph, plan, name, own.plan(choice)) for choice in mine]
            for name, own, mine in zip(space.names, space.operators, choices, strict=True)
        ]
        count = space.operators[0].processors
        self.forward = [self._loads(number, count, forward=True) for number in range(len(choices))]
        self.backward = [self._loads(number, count, forward=False) for number in range(len(choices))]
        totals = [(a + b).sum(axis=1) for a, b in zip(self.forward, self.backward, strict=True)]
        self._least = np.asarray([*np.cumsum([int(total.min()) for total in totals][::-1])[::-1], 0])
        self._totals, self._count = totals, count
        self._before = _ancestors(graph)
        self._whole = not any(cost.partial(*edge) for edge in cost.edges)
        self._paths = [self._path(path) for path in self._turning()]

    def bounds(self, prefix: Sequence[int]) -> Table:
        """The bound for each choice of the next operator.

        Args:
            prefix: the numbers of the choices of the operators before it.
        """
        number, count = len(prefix), self._count
        done = np.zeros(count, dtype=np.int64)
        total = 0
        for operator, choice in enumerate(prefix):
            done += self.forward[operator][choice] + self.backward[operator][choice]
            total += int(self._totals[operator][choice])
        shares = (done + self.forward[number] + self.backward[number]).max(axis=1)
        even = -(-(total + self._totals[number] + self._least[number + 1]) // count)
        found = np.maximum(shares, even)
        for path in self._paths:
            if number in path[0].operators:
                found = np.maximum(found, self._along(*path, prefix))
        return found

    def _along(self, latest: Path, earliest: Path, prefix: Sequence[int]) -> Table:
        """The bounds by a path that the next operator is on."""
        number = len(prefix)
        place = latest.operators.index(number)
        there, back = latest.so_far(place, prefix)
        found = there + back + latest.rest[place]
        if not self._whole:
            return found
        load = self.backward[number].copy()
        for operator, choice in enumerate(prefix):
            if operator in self._before[number]:
                load += self.backward[operator][choice]
        there, _ = earliest.so_far(place, prefix)
        return np.maximum(found, there + earliest.until[place] + load.max(axis=1))

    def _loads(self, number: int, count: int, *, forward: bool) -> Table:
        """What each choice of an operator gives each processor to do; nothing where it is replaced by others."""
        table = np.zeros((len(self._choices[number]), count), dtype=np.int64)
        for row, choice in enumerate(self._choices[number]):
            if self._fused[number][row]:
                placed = self._cost.placed(number, choice)
                for at, (where, durations) in enumerate(zip(placed.processors, placed.durations, strict=True)):
                    if (at < placed.forward) == forward:
                        np.add.at(table[row], where, durations)
        return table

    def _turning(self) -> list[tuple[int, ...]]:
        """Some of the paths to the loss, up to the last operator whose backward pass needs its own forward pass."""
        loss = self._graph.loss_tensor
        producer = None if loss is None else self._graph.producer(loss)
        found = []
        for path in _paths(self._cost.edges, 0 if producer is None else producer.id):
            turns = [place for place, operator in enumerate(path) if self._cost.turns(operator)]
            if turns:
                found.append(path[: turns[-1] + 1])
        return sorted(set(found))

    def _path(self, operators: tuple[int, ...]) -> tuple[Path, Path]:
        """The latest and the earliest terms of a path."""
        terms = [self._terms(*step) for step in pairwise(operators)]
        turn = np.asarray([self._time(operators[-1], row, 1)[1] for row in range(len(self._choices[operators[-1]]))])
        heads = np.asarray([self._time(operators[0], row, 0) for row in range(len(self._choices[operators[0]]))])
        return (
            Path.of(operators, heads[:, 0], [(t[0], t[1]) for t in terms], turn),
            Path.of(operators, heads[:, 1], [(t[2], t[3]) for t in terms], turn),
        )

    def _time(self, number: int, row: int, launch: int) -> tuple[int, int]:
        """The time of the longest and of the shortest task of a launch; from the second on, of all backward ones."""
        placed = self._cost.placed(number, self._choices[number][row])
        times = placed.durations[:1] if launch == 0 else placed.durations[1:]
        if not times or not self._fused[number][row]:
            return 0, 0
        return max(int(found.max()) for found in times), min(int(found.min()) for found in times)

    def _terms(self, writer: int, reader: int) -> tuple[Table, Table, Table, Table]:
        """Of two operators the latest terms, forward and backward, and the earliest ones."""
        table = np.zeros((4, len(self._choices[writer]), len(self._choices[reader])), dtype=np.int64)
        for row, one in enumerate(self._choices[writer]):
            for column, other in enumerate(self._choices[reader]):
                if self._fused[writer][row] and self._fused[reader][column]:
                    both = self._cost.placed(writer, one), self._cost.placed(reader, other)
                    table[:, row, column] = self._pair(writer, reader, both)
        return table[0], table[1], table[2], table[3]

    def _pair(self, writer: int, reader: int, both: tuple[Placed, Placed]) -> tuple[int, int, int, int]:
        found = [0, 0, 0, 0]
        for region in self._cost.handed_over(writer, reader, both):
            of_gradient = region.uses[0].end[0] == "gradient"
            target = both[0] if of_gradient else both[1]
            side = "operand" if of_gradient else "result"
            sources = [at for at, use in enumerate(region.uses) if use.end[1] == side and use.writes]
            targets = [
                at
                for at, use in enumerate(region.uses)
                if use.end[1] != side and not use.writes and (use.launch >= target.forward) == of_gradient
            ]
            if len(sources) == 1 and targets:
                times = target.durations[region.uses[targets[0]].launch]
                latest, earliest = _term(region.rows, sources[0], targets[0], times, moving=region.alone)
                found[of_gradient] = max(found[of_gradient], latest)
                found[2 + of_gradient] = max(found[2 + of_gradient], earliest)
        return found[0], found[1], found[2], found[3]


def _term(rows: RegionRows, source: int, target: int, times: Table, *, moving: bool) -> tuple[int, int]:
    """The latest and the earliest term of two uses of a region.

    Args:
        rows: the region.
        source: the use that comes first.
        target: the other one.
        times: the nanoseconds of the target's tasks, by point.
        moving: whether movements count.
    """
    count = len(rows.tasks)
    after: dict[int, list[int]] = {}
    for node, later in rows.edges.tolist():
        after.setdefault(node, []).append(later)
    firsts, lasts = (np.flatnonzero(rows.tasks[:, 0] == use).tolist() for use in (source, target))
    ways = np.full((len(firsts), len(lasts)), -1, dtype=np.int64)
    for place, first in enumerate(firsts):
        reached, waiting = {first: 0}, [first]
        while waiting:
            node = waiting.pop()
            for later in after.get(node, ()):
                at = reached[node]
                if later >= count:
                    at += int(rows.columns[later - count, 1]) if moving else 0
                if at > reached.get(later, -1):
                    reached[later] = at
                    if later >= count:
                        waiting.append(later)
        ways[place] = [reached.get(last, -1) for last in lasts]
    own = times[rows.tasks[lasts, 1]]
    latest = np.where(ways >= 0, ways + own, 0).max(axis=1).min()
    earliest = (np.maximum(ways.max(axis=0), 0) + own).min()
    return int(latest), int(earliest)


def _paths(edges: Sequence[tuple[int, int]], loss: int) -> Iterator[tuple[int, ...]]:
    """Some of the paths that end at the loss, ascending."""
    into: dict[int, list[int]] = {}
    for writer, reader in edges:
        into.setdefault(reader, []).append(writer)
    waiting, found = [(loss,)], 0
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
