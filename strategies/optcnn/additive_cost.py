"""The additive cost: what a step takes if nothing overlaps, as a sum over operators and over pairs of neighbours.

    t(S) = sum over operators of  task(o, c_o) + synchronisation(o, c_o)  +  sum over edges of  transfer(o, p, c_o, c_p)

(Z. Jia et al., Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks, ICML 2018, section 5.1.) All
three come from what the simulator takes too: the launches of each operator, the cost model's time of each task, and the
movements that the rules of validity derive for a region from its uses.

    task              the slowest task of each of the operator's launches, forward and backward
    synchronisation   what the values and gradients of its weights move between home and use, and the update; an
                      operator that shares a weight bears an equal part
    transfer          what the value between two operators, and its gradient on the way back, move

What one use of a region moves takes as long as the busiest link needs, and then the busiest processor that folds. An
exchange inside an operator (of batch statistics, say) is in no term: the published cost has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.home import default_home
from maniple.operators.optimizer import SGD
from maniple.strategies.cost_model.analytic import Analytic
from maniple.strategies.placement import complete, whole
from maniple.strategies.simulation.history import USE
from maniple.strategies.simulation.region import READ, READ_WRITE
from maniple.strategies.simulation.step import StepLaunches
from maniple.strategies.simulation.use import RegionCache, Use, boxes_of, home_of, use_shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maniple.operators.configuration import OperatorPlan
    from maniple.operators.node import Node
    from maniple.regions.logical_region import LogicalRegion
    from maniple.runtime.launch import Launch
    from maniple.strategies.optcnn.elimination import Costs
    from maniple.strategies.simulation.boxes import Boxes
    from maniple.strategies.simulation.use import RegionRows
    from maniple.strategies.space import Choice, Space
    from maniple.strategies.strategy import Problem

__all__: list[str] = []

NS = 1e-9
NOTHING = boxes_of(())

Place = tuple[bool, int, int]
"""A use of what two operators share: whether it is the consumer's, and the number of its launch and requirement."""


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """An operator's launches under one choice.

    Args:
        launches: forward and backward, in program order.
        durations: the nanoseconds of each task of each launch.
        uses: of every requirement of every launch.
    """

    launches: tuple[Launch, ...]
    durations: tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]
    uses: tuple[tuple[Use, ...], ...]


@dataclass(frozen=True, slots=True)
class Shared:
    """A region that two operators hand over: the value between them, or its gradient.

    Args:
        region: the region.
        places: its uses by the two, in program order.
        partial: whether others write a part of it.
    """

    region: LogicalRegion
    places: tuple[Place, ...]
    partial: bool


@final
class AdditiveCost:
    """The tables of the additive cost, made as they are asked for; what is alike shares.

    Args:
        problem: the graph and the machine.
        space: the graph's space.
        choices: of every operator those that are compared.
    """

    def __init__(self, problem: Problem, space: Space, choices: Sequence[Sequence[Choice]]) -> None:
        self._graph, self._machine = problem.graph, problem.machine
        self._space, self._choices = space, choices
        self._nodes = self._graph.nodes
        self._costs, self._cache = Analytic(self._machine), RegionCache(self._machine)
        self._whole = {node.name: whole(self._graph, node, 0) for node in self._nodes}
        plan = complete(problem, "whole", tuple(self._whole.items()))
        self._step = StepLaunches(self._graph, plan, self._machine, SGD(lr=0.1, momentum=0.9))
        self._slots = {launch.name: slot for slot, launch in enumerate(self._step.program.launches)}
        self._shapes: dict[object, int] = {}
        self._placed: dict[tuple[int, Choice], Placed] = {}
        self._tables: dict[object, Costs] = {}
        self._rows: dict[object, list[int]] = {}
        self._moved: dict[int, int] = {}
        self._filling = self._fill()
        self._users: dict[int, list[Node]] = {}
        for node in self._nodes:
            for operand in dict.fromkeys(node.operands):
                if operand is not None and self._graph.tensors[operand].name in self._step.held:
                    self._users.setdefault(operand, []).append(node)
        self._bare = [self._launches(node, self._whole[node.name]) for node in self._nodes]
        self._region_users: dict[int, set[int]] = {}
        for node, launches in zip(self._nodes, self._bare, strict=True):
            for requirement in (r for launch in launches for r in launch.requirements):
                self._region_users.setdefault(requirement.region.id, set()).add(node.id)
        kinds: dict[object, int] = {}
        self._kinds = [kinds.setdefault(self._signature(node), len(kinds)) for node in self._nodes]
        near = [(a, b) for b, found in enumerate(space.neighbours) for a in found if a < b]
        self._shared = {(a, b): self._handed_over(a, b) for a, b in sorted(near)}

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """The pairs (producer, consumer) of operators that hand something over in a step, ascending."""
        return tuple(edge for edge, shared in self._shared.items() if shared)

    @property
    def entries(self) -> int:
        """How many entries the tables of all edges have, alike edges counted once: nearly all of the work."""
        sizes = {self._edge_kind(a, b): len(self._choices[a]) * len(self._choices[b]) for a, b in self.edges}
        return sum(sizes.values())

    def fill(self, entries: int) -> bool:
        """Make so many more entries, or a few more.

        Returns:
            Whether all tables are made.
        """
        made = 0
        for size in self._filling:
            made += size
            if made >= entries:
                return False
        return True

    def operator(self, number: int) -> Costs:
        """Seconds of each choice of an operator: its tasks, and the synchronisation of its weights."""
        kind = ("operator", self._kinds[number])
        if kind not in self._tables:
            found = [self._own_ns(number, choice) * NS for choice in self._choices[number]]
            self._tables[kind] = np.asarray(found, dtype=np.float64)
        return self._tables[kind]

    def edge(self, writer: int, reader: int) -> Costs:
        """Seconds that what goes between two operators needs, for each choice of the one and of the other."""
        kind = self._edge_kind(writer, reader)
        if kind not in self._tables:
            rows = [self._edge_row(writer, reader, number) for number in range(len(self._choices[writer]))]
            self._tables[kind] = np.asarray(rows, dtype=np.float64) * NS
        return self._tables[kind]

    def placed(self, number: int, choice: Choice) -> Placed:
        """The launches of an operator under a choice; those of an alike operator where there is one."""
        key = self._kinds[number], choice
        if key not in self._placed:
            configuration = self._space.operators[number].plan(choice)
            launches = self._launches(self._nodes[number], configuration)
            durations = tuple(self._costs.task_ns(launch) for launch in launches)
            self._placed[key] = Placed(launches, durations, tuple(self._uses(launch) for launch in launches))
        return self._placed[key]

    def shared(self, writer: int, reader: int) -> tuple[Shared, ...]:
        """The regions that two operators hand over."""
        return self._shared[writer, reader]

    def turns(self, number: int) -> bool:
        """Whether an operator's backward pass reads what its own forward pass writes."""
        forward, *others = self._bare[number] or (None,)
        if forward is None:
            return False
        written = {r.region.id for r in forward.requirements if r.privilege.writes or r.privilege.reduces}
        return any(r.region.id in written and r.privilege.reads for launch in others for r in launch.requirements)

    def users(self, region: int) -> int:
        """How many operators use a region."""
        return len(self._region_users[region])

    def handed_over(self, writer: int, reader: int, ends: tuple[Placed, Placed]) -> list[RegionRows]:
        """What the regions between two operators add to a step if nobody else uses them."""
        found = []
        for shared in self._shared[writer, reader]:
            uses = [ends[of_reader].uses[launch][place] for of_reader, launch, place in shared.places]
            home = self._elsewhere(shared, uses) if shared.partial else NOTHING
            found.append(self._cache.rows(shared.region, home, uses))
        return found

    def _transfer_ns(self, rows: RegionRows) -> int:
        """See ``transfer_ns``; what the cache of regions shares is counted once."""
        if id(rows) not in self._moved:
            self._moved[id(rows)] = transfer_ns(rows)
        return self._moved[id(rows)]

    def _fill(self) -> Iterator[int]:
        """Make the tables, a little at a time; gives the number of entries that were made."""
        for number in range(len(self._nodes)):
            yield len(self.operator(number))
        for writer, reader in self.edges:
            for choice in range(len(self._choices[writer])):
                if self._edge_kind(writer, reader) not in self._tables:
                    yield len(self._edge_row(writer, reader, choice))
            self.edge(writer, reader)

    def _edge_row(self, writer: int, reader: int, number: int) -> list[int]:
        """The nanoseconds of an edge for one choice of the writer and each of the reader."""
        key = self._edge_kind(writer, reader), number
        if key not in self._rows:
            one = self.placed(writer, self._choices[writer][number])
            ends = ((one, self.placed(reader, other)) for other in self._choices[reader])
            self._rows[key] = [sum(map(self._transfer_ns, self.handed_over(writer, reader, both))) for both in ends]
        return self._rows[key]

    def _edge_kind(self, writer: int, reader: int) -> object:
        places = tuple(shared.places for shared in self._shared[writer, reader])
        return "edge", self._kinds[writer], self._kinds[reader], places

    def _launches(self, node: Node, configuration: OperatorPlan) -> tuple[Launch, ...]:
        """An operator's own launches; none where the step does not need it."""
        if self._step.node(node.name) is None:
            return ()
        return tuple(launch for launch in self._step.of_operator(node.name, configuration) if launch.kind)

    def _uses(self, launch: Launch) -> tuple[Use, ...]:
        processors = np.asarray([point.processor for point in launch.points], dtype=np.int64)
        found = []
        for requirement in launch.requirements:
            shape = use_shape(launch, requirement)
            key = shape.privilege, shape.points.tobytes(), shape.colors.tobytes(), shape.boxes.tobytes()
            where = processors[shape.points]
            number = self._shapes.setdefault(key, len(self._shapes))
            found.append(Use(shape, where, (number, where.tobytes())))
        return tuple(found)

    def _signature(self, node: Node) -> object:
        """What alike operators have in common: the operator, all that its launches use, and who shares its weights."""
        bare = self._bare[node.id]
        requirements = tuple(
            (launch.kind, tuple((r.privilege, r.region.bounds, r.region.itemsize) for r in launch.requirements))
            for launch in bare
        )
        weights = tuple(len(self._users.get(operand, ())) for operand in node.operands if operand is not None)
        return node.operator, self._graph.bound(node).operand_shapes, requirements, weights

    def _handed_over(self, writer: int, reader: int) -> tuple[Shared, ...]:
        """The regions that one of two operators writes and the other reads."""
        found: dict[int, list[tuple[int, Place]]] = {}
        regions: dict[int, LogicalRegion] = {}
        roles: dict[int, set[tuple[bool, bool]]] = {}
        partial: set[int] = set()
        for of_reader, number in ((False, writer), (True, reader)):
            for at, launch in enumerate(self._bare[number]):
                for place, requirement in enumerate(launch.requirements):
                    region, privilege = requirement.region, requirement.privilege
                    regions[region.id] = region
                    found.setdefault(region.id, []).append((self._slots[launch.name], (of_reader, at, place)))
                    writes = privilege.writes or privilege.reduces
                    roles.setdefault(region.id, set()).add((of_reader, writes))
                    if writes and requirement.rects[0].volume < region.bounds.volume:
                        partial.add(region.id)
        return tuple(
            Shared(regions[number], tuple(place for _, place in sorted(found[number])), number in partial)
            for number in sorted(found)
            if {(False, True), (True, False)} <= roles[number] or {(True, True), (False, False)} <= roles[number]
        )

    def _elsewhere(self, shared: Shared, uses: Sequence[Use]) -> Boxes:
        """The parts of a region that others write, as if they were where they are read."""
        memory = [processor.memory for processor in self._machine.processors]
        tables = [NOTHING]
        for use in uses:
            if use.shape.privilege in {READ, READ_WRITE}:
                boxes = use.shape.boxes.copy()
                boxes[:, 0] = [memory[processor] for processor in use.processors]
                tables.append(boxes)
        return np.concatenate(tables)

    def _own_ns(self, number: int, choice: Choice) -> float:
        node, placed = self._nodes[number], self.placed(number, choice)
        if not placed.launches:
            return 0.0
        total = float(sum(int(durations.max()) for durations in placed.durations))
        for tensor in dict.fromkeys(node.operands):
            if tensor in self._users:
                total += self._synchronisation_ns(number, choice, tensor) / len(self._users[tensor])
        return total

    def _synchronisation_ns(self, number: int, choice: Choice, tensor: int) -> int:
        """What a weight's value and gradient move, and its update, if all alike users have this choice."""
        name = self._graph.tensors[tensor].name
        configuration = self._space.operators[number].plan(choice)
        alike = [user.name for user in self._users[tensor] if self._kinds[user.id] == self._kinds[number]]
        home = default_home(self._graph, {**self._whole, **dict.fromkeys(alike, configuration)}, name, self._machine)
        launches = self._step.of_weight(name, home)
        weight = self._step.held[name]
        regions = {region.id: region for region in weight.regions}
        regions.update((r.region.id, r.region) for launch in launches for r in launch.requirements)
        placed = self.placed(number, choice)
        numbers = [[r.region.id for r in launch.requirements] for launch in self._bare[number]]
        total = sum(int(self._costs.task_ns(launch).max()) for launch in launches)
        later = [(launch, self._uses(launch)) for launch in launches]
        for region in regions.values():
            uses = [
                use
                for launch, found in zip(numbers, placed.uses, strict=True)
                for place, use in zip(launch, found, strict=True)
                if place == region.id
            ]
            for launch, found in later:
                uses += [u for r, u in zip(launch.requirements, found, strict=True) if r.region.id == region.id]
            if uses:
                held = home_of(weight.home) if region.id in {own.id for own in weight.regions} else NOTHING
                total += self._transfer_ns(self._cache.rows(region, held, uses))
        return total


def transfer_ns(rows: RegionRows) -> int:
    """The nanoseconds of what a region moves: for each use of it the busiest link's, and then the busiest folder's.

    Args:
        rows: the region's movements.
    """
    if len(rows.held) == 0:
        return 0
    # One group for the folds and one for the transfers of each use.
    _, groups = np.unique(2 * rows.moves[:, USE] + (rows.bytes == 0), return_inverse=True)
    longest = np.zeros(groups.max() + 1, dtype=np.int64)
    np.maximum.at(longest, groups, rows.columns[:, 1])
    lanes = int(rows.held[:, 0].max()) + 1
    holders = np.repeat(groups, rows.columns[:, 2])
    busy = np.bincount(holders * lanes + rows.held[:, 0], rows.held[:, 1], len(longest) * lanes)
    return int(np.maximum(longest, busy.reshape(-1, lanes).max(axis=1)).sum())
