"""Fragments: what the choices of some layers add to a step, kept from simulations; other steps are made of them.

A launch depends on the choice of its operator, an update on those of a weight's readers, and what a region moves on
those of all that use it. Tensors that may be used where another lies are one region, as are gradients that are passed
on. So a step is a fragment for each group of layers that have such a thing in common. Once each fragment of a plan was
in some plan that was simulated, it is timed without lowering anything:

    plans of the layers a - b - c     fragments by group     a   b   c   a b   b c
    simulated  a=0 b=0 c=0            kept                   0   0   0   0 0   0 0
    simulated  a=1 b=0 c=1            kept                   1   .   1   1 0   0 1
    timed      a=1 b=0 c=0            of the one or other    1   0   0   1 0   0 0
    not known  a=0 b=1 c=0            lacks all with b=1
"""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.process.error import RequestError
from maniple.strategies.exhaustive.branch_kernels import HERE, UNKNOWN, assembled_ns
from maniple.strategies.simulation.launch_table import REQUIREMENT_BITS
from maniple.strategies.simulation.plan_free_step import CLOCK, GROWTH, HYPER, SCALE, SKIPPED, SQUARES
from maniple.strategies.simulation.simulation import TASKS
from maniple.strategies.timing.tables import NUMBER_BITS, NUMBER_MASK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.strategies.exhaustive.branch_kernels import Grid, Index, Kept, Known
    from maniple.strategies.exhaustive.published_layer import Layers
    from maniple.strategies.simulation.launch_table import PlacedLaunch
    from maniple.strategies.simulation.operator_placement import LaunchRows
    from maniple.strategies.simulation.plan_free_step import PlanFreeStep, RegionKey
    from maniple.strategies.simulation.region_cache import RegionRows
    from maniple.strategies.simulation.simulation import Simulation

    Group = tuple[int, ...]

__all__: list[str] = []

ENTRIES = 20_000_000
"""Where all groups have more choices together, nothing is kept."""


@final
class Fragments:
    """The fragments of a graph's plans.

    Args:
        plan_free: of the graph.
        layers: what is decided.
        lanes: how many processors and links there are.
    """

    def __init__(self, plan_free: PlanFreeStep, layers: Layers, lanes: int) -> None:
        self._plan_free, self._layers, self._lanes = plan_free, layers, lanes
        self._sizes = [len(layers.choices[leader]) for leader in layers.leaders]
        self._users: dict[int, set[int]] = {}
        for node in plan_free.nodes:
            for tensor in (*node.operands, *node.results):
                if tensor is not None:
                    self._users.setdefault(tensor, set()).add(layers.place[node.id])
        for buffer, value in plan_free.assignments.items():
            both = self._users.setdefault(buffer, set()) | self._users[value]
            self._users[buffer] = self._users[value] = both
        for together in _regions_together(plan_free):
            users = set().union(*(self._users[tensor] for tensor in together))
            self._users.update(dict.fromkeys(together, users))
        self._viewed = {node: group.root for group in plan_free.groups for node in group.nodes}
        self._random = {layers.place[node.id] for node in plan_free.nodes if node.operator.random}
        found = {(place,) for place in layers.place} | {tuple(sorted(users)) for users in self._users.values()}
        found |= {self._of_region(key) for key in plan_free.whole}
        self._groups = sorted(found | ({tuple(sorted(self._random))} if self._random else set()))
        starts = self._starts()
        self.keeps = starts[-1] <= ENTRIES
        """Whether any fragments are kept; otherwise each plan must be simulated."""
        if not self.keeps:
            self._groups, starts = [()], [0, 1]
        found_in = np.full(starts[-1], UNKNOWN, dtype=np.int64)
        self._index: Index = found_in, np.asarray(starts[:-1], dtype=np.int64), self._strides()
        self._slots: dict[int, int] = {}
        self._count = np.zeros(5, dtype=np.int64)
        self._kept: Kept = tuple(np.zeros((64, width), dtype=np.int64) for width in (8, 2, 3, 2, 4))  # type: ignore[assignment]

    def _starts(self) -> list[int]:
        """Where the entries of each group begin, and where the last ones end: there may be more than can be counted."""
        return list(accumulate((prod(self._sizes[place] for place in group) for group in self._groups), initial=0))

    def _strides(self) -> Grid:
        """By how many entries the next choice of each layer is further on, group by group."""
        strides = np.zeros((len(self._groups), len(self._sizes)), dtype=np.int64)
        for group, steps in zip(self._groups, strides, strict=True):
            size = 1
            for place in reversed(group):
                steps[place] = size
                size *= self._sizes[place]
        return strides

    def step_ns(self, numbers: Sequence[int], limit_ns: int, count: int) -> int:
        """The makespan of a plan, or UNKNOWN where one of its fragments is not known.

        Args:
            numbers: of the choice of each layer.
            limit_ns: where the makespan is seen to be no less, any number that it reaches at least may be given.
            count: how many fragments are known, of those that are kept.
        """
        return int(assembled_ns(np.asarray(numbers, dtype=np.int64), self.view(count), limit_ns))

    def view(self, count: int) -> Known:
        """What compiled code reads when so many fragments are known."""
        return self._index, self._kept, (count, len(self._slots), self._lanes)

    def keep(self, numbers: Sequence[int], simulation: Simulation) -> int:
        """Keep the fragments of a plan that are not kept yet.

        Args:
            numbers: of the choice of each layer.
            simulation: of that plan.

        Returns:
            How many fragments there were when all of these were kept.

        Raises:
            RequestError: the plan has something that the graph's plan_free does not tell.
        """
        if not self.keeps:
            return 0
        found, starts, strides = self._index
        entries = starts + strides @ np.asarray(numbers, dtype=np.int64)
        if (found[entries] < 0).any():
            places = dict(zip(self._groups, entries.tolist(), strict=True))
            made = {group: _Fragment(self._slots) if found[at] < 0 else None for group, at in places.items()}
            self._gather(made, simulation)
            for group, fragment in made.items():
                if fragment is not None:
                    found[places[group]] = self._append(fragment)
        return int(found[entries].max()) + 1

    def _gather(self, made: Mapping[Group, _Fragment | None], simulation: Simulation) -> None:
        """Fill the fragments of a plan, but for those that are kept already."""
        launches, regions = simulation.parts()
        for place, launch in sorted(launches.items()):
            fragment = _own(made, self._of_launch(place, launch), launch.name)
            if fragment is not None:
                fragment.add_launch(place, launch.rows)
        for key, (rows, users) in sorted(regions.items()):
            fragment = _own(made, self._of_region(key), f"region {key}")
            if fragment is not None:
                fragment.add_region(rows, users)

    def _of_launch(self, place: int, launch: PlacedLaunch) -> Group:
        """The layers on whose choices a launch depends: those of its operator, or all that use what it is for."""
        kind, number, *_ = self._plan_free.action(place)
        if kind in {"forward", "backward"} and not launch.name.endswith((".norm", ".update")):
            if number in self._viewed:  # it is there if some user of what it makes cannot do without
                return tuple(sorted(self._users[self._viewed[number]]))
            return (self._layers.place[number],)
        return self._of_region(launch.uses[0][0])

    def _of_region(self, key: RegionKey) -> Group:
        """The layers that use a region."""
        kind, number, tensor = key
        if key == CLOCK:
            return tuple(sorted(self._random))
        if key in {HYPER, SQUARES, SCALE, GROWTH, SKIPPED}:
            trained = [self._users[parameter.id] for parameter in self._plan_free.graph.parameters]
            return tuple(sorted(set().union(*trained, self._users[self._plan_free.loss] if key == SCALE else ())))
        if number < 0 or kind == "state":
            return tuple(sorted(self._users[tensor]))
        return (self._layers.place[number],)

    def _append(self, fragment: _Fragment) -> int:
        """Write a fragment behind those there are, and give its number."""
        head: list[int] = []
        tables = list(self._kept)
        parts: list[Sequence[tuple[int, ...]]] = [fragment.launches, fragment.rows, fragment.holds, fragment.edges]
        for which, rows in enumerate(parts, 1):
            first, last = int(self._count[which]), int(self._count[which]) + len(rows)
            tables[which] = _grow(tables[which], last)
            tables[which][first:last] = np.asarray(rows, dtype=np.int64).reshape(len(rows), tables[which].shape[1])
            self._count[which] = last
            head += [first, last]
        number = int(self._count[0])
        tables[0] = _grow(tables[0], number + 1)
        tables[0][number] = head
        self._count[0] = number + 1
        self._kept = tables[0], tables[1], tables[2], tables[3], tables[4]
        return number


@final
class _Fragment:
    """A fragment as it is gathered.

    Args:
        slots: by place of a launch, its number; new ones are added.
    """

    def __init__(self, slots: dict[int, int]) -> None:
        self._slots = slots
        self.launches: list[tuple[int, int]] = []
        """(slot, first row) of each."""
        self.rows: list[tuple[int, int, int]] = []
        """(key, nanoseconds, number of holds) of each."""
        self.holds: list[tuple[int, int]] = []
        """(lane, nanoseconds) of each."""
        self.edges: list[tuple[int, int, int, int]] = []
        """(slot, point, slot that waits, point) of each, or of a movement HERE and its row."""

    def add_launch(self, place: int, rows: LaunchRows) -> None:
        """Add a launch, which holds a processor for each task."""
        self.launches.append((self._slot(place), len(self.rows)))
        key = (place << REQUIREMENT_BITS | TASKS) << NUMBER_BITS
        self.rows += [(key + number, duration, held) for number, duration, held in rows.columns.tolist()]
        self.holds += [(lane, span) for lane, span in rows.held[:, :2].tolist()]

    def add_region(self, rows: RegionRows, users: Sequence[int]) -> None:
        """Add what a region moves, and who waits for whom.

        Args:
            rows: of the region.
            users: the place of each use and, in the lowest bits, the number of the requirement.
        """
        nodes = [(self._slot(users[use] >> REQUIREMENT_BITS), point) for use, point in rows.tasks.tolist()]
        nodes += [(HERE, len(self.rows) + number) for number in range(len(rows.columns))]
        for key, duration, held in rows.columns.tolist():
            use, number = key >> NUMBER_BITS, key & NUMBER_MASK
            self.rows.append(((users[use] << NUMBER_BITS) + number, duration, held))
        self.holds += [(lane, span) for lane, span in rows.held[:, :2].tolist()]
        self.edges += [(*nodes[one], *nodes[other]) for one, other in rows.edges.tolist() if nodes[one] != nodes[other]]

    def _slot(self, place: int) -> int:
        return self._slots.setdefault(place, len(self._slots))


def _regions_together(plan_free: PlanFreeStep) -> list[set[int]]:
    """The tensors of which several may use one region, or have one gradient."""
    found = [set(group.members) for group in plan_free.groups]
    nodes = plan_free.nodes
    found += [
        {
            nodes[number].results[0],
            *(operand for place in places if (operand := nodes[number].operands[place]) is not None),
        }
        for number, places in plan_free.passed.items()
    ]
    joined: list[set[int]] = []
    for tensors in found:
        meeting = [other for other in joined if other & tensors]
        joined = [*(other for other in joined if not other & tensors), tensors.union(*meeting)]
    return joined


def _own(made: Mapping[Group, _Fragment | None], group: Group, what: str) -> _Fragment | None:
    """The fragment of a group: without what belongs to none, plans would seem faster than they are."""
    if group not in made:
        raise RequestError(f"exhaustive search: {what} depends on the layers {group}, which are no group; report this")
    return made[group]


def _grow(table: Grid, need: int) -> Grid:
    """The table, or where it has not that many rows one twice as large."""
    if need <= len(table):
        return table
    larger = np.zeros((2 * need, table.shape[1]), dtype=np.int64)
    larger[: len(table)] = table
    return larger
