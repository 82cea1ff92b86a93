"""Terms: what the choices of one operator, of two neighbours, or of the users of a weight, add to any step.

Of two launches A and B that hand something over, let way(a, b) be the longest chain of movements from a task of the one
to a task of the other that waits for it. Then

    latest      the last of B ends no earlier than the last of A plus  min over a of max over b of way(a, b) + time(b)
    earliest    the first of B ends no earlier than the first of A plus  min over b of max over a of the same
    between     where each b waits for each a, the first of B starts no earlier than the last of A plus  min way(a, b)

since some task of B waits for the one of A that ends last, and each waits for one. Where other operators use the region
too, a way counts for nothing: what it moves may have been moved for them. An operator that a split replaces by others
has no ways, but its tasks are known. One that only rearranges may have no task at all
(`operators/lowering/view_group.py`), and counts for nothing; the gradient of a sum, which is read as its summands' too,
is no way to the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.lowering.composite import is_composite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan
    from maniple.strategies.exhaustive.published_layer import Layers
    from maniple.strategies.interface.space import Space
    from maniple.strategies.optcnn.operator_movement import Placed, PlacedUse, Region, Synchronisation
    from maniple.strategies.optcnn.placed_operators import PlacedOperators
    from maniple.strategies.simulation.region_cache import RegionRows

    Table = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

__all__: list[str] = []

LATEST, EARLIEST, BACK_LATEST, BACK_EARLIEST, BACK_ANY, BETWEEN = range(6)
"""What two neighbours add: forward, and backward to the first launch that reads the gradient; `BACK_ANY` is the latest
to whichever launch that reads it."""
NEVER = -1e12
"""`BETWEEN` where not each task waits for each."""
COMBINATIONS = 5_000
"""The users of a weight are looked at together where they have at most so many choices."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Users:
    """What the users of some weights add together, by the choice of each of their leaders.

    Args:
        operators: the users, ascending.
        places: of their leaders, ascending; one axis of each table for each.
        work: last axis: nanoseconds for which the gradients and the updates hold each processor and link.
        moved: the same of the weights' values, which are read before.
        first: for each user the end of its first launch: [user, ..., latest and earliest].
        last: the least time from the end of the first user's last launch to the end of the weights' updates.
    """

    operators: tuple[int, ...]
    places: tuple[int, ...]
    work: Table
    moved: Table
    first: Table
    last: Table


@final
class Terms:
    """The terms of a graph, made a little at a time.

    Args:
        graph: the graph.
        plan: any plan of it, whose semantics count.
        space: its space.
        layers: what is decided.
        cost: the launches and regions of the same choices.
    """

    def __init__(self, graph: Graph, plan: Plan, space: Space, layers: Layers, cost: PlacedOperators) -> None:
        self._cost, self._layers = cost, layers
        self._fused = [
            [not is_composite(graph, plan, name, own.plan(choice)) for choice in mine]
            for name, own, mine in zip(space.names, space.operators, layers.choices, strict=True)
        ]
        self._free = {node for group in cost.plan_free.groups for node in group.nodes}
        self.processors, self.lanes = space.operators[0].processors, cost.lanes
        self.work: dict[int, tuple[Table, Table]] = {}
        """By operator: what each choice gives each processor to do, forward and backward."""
        self.spans: dict[int, tuple[Table, Table, Table]] = {}
        """By operator and choice: the longest and the shortest task of its first launch, and its shortest backward."""
        self.ways: dict[tuple[int, int], Table] = {}
        """By edge: [kind, choice of the one, choice of the other]; of one leader only the diagonal counts."""
        self.moved: dict[tuple[int, int], Table] = {}
        """By edge: [choice of the one, choice of the other, lane] for how long what is handed over holds it."""
        self.users: list[Users] = []
        self._found: dict[object, tuple[list[float], Table]] = {}
        self._filling, self._made = self._fill(), 0

    def make(self, entries: int) -> bool:
        """Make entries until there are so many, unless they were made before.

        Returns:
            Whether these are all.
        """
        while self._made < entries:
            size = next(self._filling, None)
            if size is None:
                return True
            self._made += size
        return False

    def _fill(self) -> Iterator[int]:
        for number, choices in enumerate(self._layers.choices):
            self._operator(number)
            yield len(choices)
        for edge in self._cost.edges:
            yield from self._edge(*edge)
        for operators, weights in self._cost.shared_weights():
            yield from self._together(operators, weights)

    def _operator(self, number: int) -> None:
        """The work and the spans of an operator; none where the step does not need it."""
        choices = self._layers.choices[number]
        forward, backward = (np.zeros((len(choices), self.processors)) for _ in range(2))
        spans = np.zeros((3, len(choices)))
        for row, choice in enumerate(choices):
            if not self._cost.needs(number) or number in self._free:
                break
            placed = self._cost.place(number, choice)
            for at, (where, durations) in enumerate(zip(placed.processors, placed.durations, strict=True)):
                np.add.at((forward if at < placed.forward else backward)[row], where, durations)
            if self._fused[number][row]:
                spans[0, row], spans[1, row] = placed.durations[0].max(), placed.durations[0].min()
                spans[2, row] = min((found.min() for found in placed.durations[placed.forward :]), default=0)
        self.work[number] = forward, backward
        self.spans[number] = spans[0], spans[1], spans[2]

    def _edge(self, writer: int, reader: int) -> Iterator[int]:
        """The ways between two operators."""
        mine, theirs = self._layers.choices[writer], self._layers.choices[reader]
        table = self.ways[writer, reader] = np.zeros((6, len(mine), len(theirs)))
        table[BETWEEN] = NEVER
        moved = self.moved[writer, reader] = np.zeros((len(mine), len(theirs), self.lanes))
        if self._free.intersection((writer, reader)):
            return
        tied = self._layers.place[writer] == self._layers.place[reader]
        for row, one in enumerate(mine):
            columns = [row] if tied else range(len(theirs))
            for column in columns:
                if self._fused[writer][row] and self._fused[reader][column]:
                    both = self._cost.place(writer, one), self._cost.place(reader, theirs[column])
                    table[:, row, column], moved[row, column] = self._pair(writer, reader, both)
            yield len(columns)

    def _pair(self, writer: int, reader: int, both: tuple[Placed, Placed]) -> tuple[list[float], Table]:
        passes = writer in self._cost.plan_free.passed
        key = both, tuple(self._cost.ends(writer, reader)), passes
        if key not in self._found:
            found, moved = [0.0, 0.0, 0.0, 0.0, 0.0, NEVER], np.zeros(self.lanes)
            for region in self._cost.regions_between(writer, reader, both):
                if passes and region.uses[0].end[0] == "gradient":
                    continue
                _raise(found, region, both)
                if region.alone:
                    moved += _holding_times(region.rows, self.lanes).sum(axis=0)
            self._found[key] = found, moved
        return self._found[key]

    def _together(self, operators: tuple[int, ...], weights: tuple[int, ...]) -> Iterator[int]:
        """What the users of some weights add; nothing where they have too many choices."""
        places = tuple(sorted({self._layers.place[operator] for operator in operators}))
        shape = tuple(len(self._layers.choices[self._layers.leaders[place]]) for place in places)
        if prod(shape) > COMBINATIONS:
            return
        work, moved = (np.zeros((*shape, self.lanes)) for _ in range(2))
        first = np.zeros((len(operators), *shape, 2))
        last = np.zeros(shape)
        for numbers in product(*map(range, shape)):
            chosen = dict(zip(places, numbers, strict=True))
            choices = [self._layers.choices[o][chosen[self._layers.place[o]]] for o in operators]
            found = self._cost.synchronisations(weights, operators, choices)
            for one in found:
                np.add.at(work[numbers], one.processors[: len(one.update)], one.update)
                moved[numbers] += _holding_times(one.value, self.lanes).sum(axis=0)
                if one.gradient is not None:
                    work[numbers] += _holding_times(one.gradient, self.lanes).sum(axis=0)
            for at, (operator, choice) in enumerate(zip(operators, choices, strict=True)):
                if self._fused[operator][chosen[self._layers.place[operator]]]:
                    durations = self._cost.place(operator, choice).durations[0]
                    arrivals = np.sum([_arrivals(one, at, len(durations)) for one in found], axis=0)
                    ends = arrivals.max(axis=1) + durations
                    first[(at, *numbers)] = ends.max(), ends.min()
            last[numbers] = _return(found)
            yield len(weights)
        self.users.append(Users(operators, places, work, moved, first, last))


def _raise(found: list[float], region: Region, both: tuple[Placed, Placed]) -> None:
    """Raise the terms of two neighbours by what one region between them adds."""
    of_gradient = region.uses[0].end[0] == "gradient"
    target, side = (both[0], "operand") if of_gradient else (both[1], "result")
    sources = [at for at, use in enumerate(region.uses) if use.end[1] == side and use.writes]
    targets = [at for at, use in enumerate(region.uses) if _reads(use, side, target, of_gradient=of_gradient)]
    if len(sources) != 1 or not targets:
        return
    ways = _ways(region.rows, sources[0], targets[0], moving=region.alone)
    own = _times(region, targets[0], target)
    first, second = (BACK_LATEST, BACK_EARLIEST) if of_gradient else (LATEST, EARLIEST)
    found[first] = max(found[first], np.where(ways >= 0, ways + own, 0).max(axis=1).min())
    found[second] = max(found[second], (np.maximum(ways.max(axis=0), 0) + own).min())
    if of_gradient:
        if (ways >= 0).all():
            found[BETWEEN] = max(found[BETWEEN], float(ways.min()))
        later = []
        for use in targets:
            ways = _ways(region.rows, sources[0], use, moving=region.alone)
            later.append(np.where(ways >= 0, ways + _times(region, use, target), 0).max(axis=1).min())
        found[BACK_ANY] = max(found[BACK_ANY], min(later))


def _reads(use: PlacedUse, side: str, target: Placed, *, of_gradient: bool) -> bool:
    return use.end[1] != side and not use.writes and (use.launch >= target.forward) == of_gradient


def _times(region: Region, use: int, target: Placed) -> Table:
    tasks = region.rows.tasks[region.rows.tasks[:, 0] == use, 1]
    found: Table = target.durations[region.uses[use].launch][tasks].astype(np.float64)
    return found


def _ways(rows: RegionRows, source: int, target: int, *, moving: bool) -> Table:
    """The ways from the tasks of one use of a region to those of another; -1 where there is none.

    Args:
        rows: the region.
        source: the use that comes first.
        target: the other one.
        moving: whether movements count.
    """
    count = len(rows.tasks)
    after: dict[int, list[int]] = {}
    for node, later in rows.edges.tolist():
        after.setdefault(node, []).append(later)
    firsts, lasts = (np.flatnonzero(rows.tasks[:, 0] == use).tolist() for use in (source, target))
    ways = np.full((len(firsts), len(lasts)), -1.0)
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
    return ways


def _arrivals(found: Synchronisation, user: int, tasks: int) -> Table:
    """For each task of a user's first launch and each lane: how long it is held by what the task waits for."""
    rows = found.value
    held = _holding_times(rows, found.lanes)
    number, points = found.readers[user], {}
    for task in np.flatnonzero(rows.tasks[:, 0] == number).tolist() if number >= 0 else ():
        points[task] = int(rows.tasks[task, 1])
    table = np.zeros((tasks, found.lanes))
    for node, later in rows.edges.tolist():
        if node >= len(rows.tasks) and later in points:
            table[points[later]] += held[node - len(rows.tasks)]
    return table


def _return(found: list[Synchronisation]) -> float:
    """The least time from the last task that gives to some weights' gradients to the end of their updates.

    A lane carries, one after the other, all that waits for every task of the launch that contributes last.
    """
    busy, update = np.zeros(found[0].lanes), 0.0
    for one in found:
        if one.gradient is None:
            continue
        rows, count = one.gradient, len(one.gradient.tasks)
        before: dict[int, set[int]] = {}
        for node, later in rows.edges.tolist():
            before.setdefault(later, set()).add(node)
        last = set(np.flatnonzero(rows.tasks[:, 0] == one.contributor).tolist())
        held = _holding_times(rows, one.lanes)
        for move in range(len(rows.columns)):
            reached: set[int] = set()
            waiting = [count + move]
            while waiting:
                fresh = before.get(waiting.pop(), set()) - reached
                reached |= fresh
                waiting += sorted(fresh)
            if last <= reached:
                busy += held[move]
        if len(one.update):  # of some that are one launch, the first has it
            update = float(one.update.min()) if update == 0.0 else min(update, float(one.update.min()))
    return float(busy.max()) + update


def _holding_times(rows: RegionRows, lanes: int) -> Table:
    """How long each movement holds each lane."""
    held = np.zeros((len(rows.columns), lanes))
    holders = np.repeat(np.arange(len(rows.columns)), rows.columns[:, 2])
    np.add.at(held, (holders, rows.held[:, 0]), rows.held[:, 1])
    return held
