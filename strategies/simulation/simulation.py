"""The simulation of a training step under a plan that changes operator by operator."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, final

import numba
import numpy as np

from maniple.operators.composite import is_composite, lowered
from maniple.operators.home import default_home
from maniple.operators.optimizer import SGD
from maniple.regions.error import RequestError
from maniple.runtime.schedule import RowKind
from maniple.strategies.cost_model.analytic import Analytic
from maniple.strategies.simulation.history import BY, FROM, GROUP, GROUP_SIZE, KIND, TO, USE
from maniple.strategies.simulation.ledger import Ledger, Placed, RowBlock
from maniple.strategies.simulation.prediction import COPY_ENGINE, Named, prediction
from maniple.strategies.simulation.step import StepLaunches, form
from maniple.strategies.simulation.use import RegionCache, Use, UseShape, home_of, use_shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from maniple.operators.configuration import OperatorPlan, WeightPlan
    from maniple.operators.graph import Graph
    from maniple.operators.plan import Plan
    from maniple.runtime.launch import Launch
    from maniple.runtime.machine import Machine
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.simulation.boxes import Boxes
    from maniple.strategies.simulation.ledger import Columns
    from maniple.strategies.simulation.prediction import Prediction
    from maniple.strategies.simulation.tables import Table
    from maniple.strategies.simulation.use import RegionRows

__all__: list[str] = []

SLOT_BITS, REQUIREMENT_BITS = 40, 32
TASKS = 255
"""What stands in a task's key where a movement's has the number of its requirement: tasks come after movements."""


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    """One launch of the step, as it is now."""

    launch: Launch
    uses: tuple[Use, ...]
    durations: np.ndarray[tuple[int], np.dtype[np.int64]]
    block: Placed


@dataclass(frozen=True, slots=True, eq=False)
class _Region:
    """What one region adds to the step, as it is now."""

    rows: RegionRows
    moves: Placed
    edges: Placed


@dataclass(eq=False)
class _Program:
    """The launches and regions of a step, and what each has come to; it lasts while composites stay as they are."""

    step: StepLaunches
    primitives: dict[str, OperatorPlan]
    slots: dict[int, _Slot] = field(default_factory=dict)
    rows: dict[int, _Region] = field(default_factory=dict)

    def __post_init__(self) -> None:
        program = self.step.program
        self.regions = program.regions()
        self.number = {region.id: number for number, region in enumerate(self.regions)}
        self.homes = {number: home_of(program.homes.get(region.id, ())) for number, region in enumerate(self.regions)}
        self.slot_of = {launch.name: slot for slot, launch in enumerate(program.launches)}
        self.users: list[list[tuple[int, int]]] = [[] for _ in self.regions]
        for slot, launch in enumerate(program.launches):
            for place, requirement in enumerate(launch.requirements):
                self.users[self.number[requirement.region.id]].append((slot, place))


@dataclass(slots=True)
class _Change:
    """What a proposal replaced."""

    slots: dict[int, _Slot] = field(default_factory=dict)
    regions: dict[int, _Region] = field(default_factory=dict)
    operators: dict[str, OperatorPlan] = field(default_factory=dict)
    weights: dict[str, WeightPlan] = field(default_factory=dict)
    homes: dict[int, Boxes] = field(default_factory=dict)
    primitives: dict[str, OperatorPlan] = field(default_factory=dict)
    program: _Program | None = None


@final
class Simulation:
    """A training step under a plan, timed; a proposal changes some operators and retimes only what that changes.

        simulation = Simulation(graph, machine, plan)
        before = simulation.makespan_ns
        if simulation.propose({"conv2d": configuration}) < before:
            simulation.accept()
        else:
            simulation.reject()

    The rows, their keys and their costs are those of the schedule that the runtime would run; only what does not
    change a time is left out (rectangles, instances, dependences that follow from others).

    Args:
        graph: the graph; it must have a loss.
        machine: the machine, which need not be at hand.
        plan: the plan to begin with.
        costs: what a task takes; by default the roofline.
        optimizer: what updates the weights.
        cache: what regions add to a step of this machine; simulations may share one.

    Raises:
        RequestError: the plan is not one for the graph and machine.
    """

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        plan: Plan,
        costs: CostModel | None = None,
        optimizer: SGD | None = None,
        cache: RegionCache | None = None,
    ) -> None:
        plan.validate(graph, machine)
        self.graph, self.machine = graph, machine
        self.costs = costs or Analytic(machine)
        self.cache = cache or RegionCache(machine)
        self.ledger = Ledger(self.cache.network.lanes)
        self._plan = plan
        self._operands = {node.name: node.operands for node in graph.nodes}
        self._operators = dict(plan.operators)
        self._weights = dict(plan.weights)
        self._shapes: dict[tuple[int, bytes, bytes, bytes], tuple[int, UseShape]] = {}
        self._optimizer = optimizer or SGD(lr=0.1, momentum=0.9)
        self._change: _Change | None = None
        self.memory_bytes = np.zeros(len(machine.memories), dtype=np.int64)
        self._program = self._expanded()
        self._swap(dict(enumerate(self._program.step.program.launches)), range(len(self._program.regions)), _Change())
        self.ledger.settle()
        self.ledger.keep()

    @property
    def makespan_ns(self) -> int:
        """The time of a step, the proposal under way included."""
        return self.ledger.makespan

    def predict(self) -> Prediction:
        """Say what the step comes to, the proposal under way included: bytes, memory, critical path, sources."""
        links = np.zeros(self.cache.network.lanes, dtype=np.int64)
        total = 0
        for region in self._program.rows.values():
            np.add.at(links, region.rows.held[:, 0], region.rows.held[:, 2])
            total += int(region.rows.bytes.sum())
        rows = [*self._named_tasks(), *self._named_movements()]
        return prediction(self.machine, self.cache.network, self.ledger, rows, links, total, self.memory_bytes)

    def _named_tasks(self) -> Iterator[Named]:
        for found in self._program.slots.values():
            for number, point in enumerate(found.launch.points):
                place = (self.machine.rank_of(point.processor), self.machine.processor(point.processor).name)
                source = self.costs.source(found.launch, number)
                yield Named(found.block.first + number, found.launch.label(number), "task", source, (place,))

    def _named_movements(self) -> Iterator[Named]:
        for number, region in self._program.rows.items():
            name = self._program.regions[number].name
            for place, move in enumerate(region.rows.moves):
                what = RowKind(int(move[KIND])).name.lower()
                if move[BY] >= 0:
                    processor = self.machine.processor(int(move[BY]))
                    lanes = [(self.machine.rank_of(processor.id), processor.name)]
                else:
                    group = region.rows.members[move[GROUP] : move[GROUP] + move[GROUP_SIZE], 0]
                    memories = (move[FROM], move[TO]) if move[FROM] >= 0 else group
                    lanes = [(self.machine.memories[memory].rank, COPY_ENGINE) for memory in memories]
                yield Named(region.moves.first + place, f"{what} {name}", what, "analytic", tuple(lanes))

    def held_in(self, memory: int) -> list[tuple[str, int]]:
        """Give what each region takes of a memory, by its name, in bytes."""
        names = self._program.regions
        return [(names[n].name, int(found.rows.memory_bytes[memory])) for n, found in self._program.rows.items()]

    def columns(self) -> Columns:
        """The step as it is now for a full simulation: durations, holds, successors and the number of lanes.

        Rows are numbered by their keys, as in the schedule that the runtime would run.
        """
        return self.ledger.columns()

    @property
    def plan(self) -> Plan:
        """The plan as it is now, the proposal under way included."""
        return replace(
            self._plan,
            operators=tuple((name, self._operators[name]) for name, _ in self._plan.operators),
            weights=tuple((name, self._weights[name]) for name, _ in self._plan.weights),
        )

    def propose(self, operators: Mapping[str, OperatorPlan], weights: Mapping[str, WeightPlan] | None = None) -> int:
        """Change some operators, and give the makespan.

        Args:
            operators: the new degrees and processors of each, by name; legal ones.
            weights: new homes; by default the default homes of the weights that the operators use.

        Raises:
            RequestError: another proposal waits for `accept` or `reject`, or there is no such operator.
        """
        if self._change is not None:
            raise RequestError("simulation: a proposal is under way; accept or reject it first")
        for name in operators:
            self._plan.operator(name)
        change = self._change = _Change(operators={name: self._operators[name] for name in operators})
        self._operators.update(operators)
        if weights is None:
            weights = self._default_homes(operators)
        moved = {name: home for name, home in weights.items() if home != self._weights[name]}
        change.weights = {name: self._weights[name] for name in moved}
        self._weights.update(moved)
        primitives = self._primitives_after(change.operators, operators)
        if form(primitives) != form(self._program.primitives):
            self._replace(change)
        else:
            self._alter(change, primitives)
        return self.ledger.settle()

    def _primitives(self) -> dict[str, OperatorPlan]:
        """The configurations after composites are replaced."""
        return dict(lowered(self.graph, self.plan, training=True)[1].operators)

    def _primitives_after(self, *changes: Mapping[str, OperatorPlan]) -> dict[str, OperatorPlan]:
        """The same after a change from some configurations to others, in less time where no composite is split."""
        if any(is_composite(self.graph, self._plan, *item) for change in changes for item in change.items()):
            return self._primitives()
        return {**self._program.primitives, **changes[-1]}

    def _expanded(self) -> _Program:
        """The program of the present plan, nothing in the ledger yet."""
        return _Program(StepLaunches(self.graph, self.plan, self.machine, self._optimizer), self._primitives())

    def _replace(self, change: _Change) -> None:
        """Replace the whole program: a composite was split, or made whole."""
        change.program, self._program = self._program, self._expanded()
        old, new = change.program, self._program
        blocks = [slot.block for slot in old.slots.values()] + [region.moves for region in old.rows.values()]
        self.ledger.remove(blocks, [region.edges for region in old.rows.values()])
        for region in old.rows.values():
            self.memory_bytes -= region.rows.memory_bytes
        self._add(dict(enumerate(new.step.program.launches)), range(len(new.regions)))

    def _alter(self, change: _Change, primitives: dict[str, OperatorPlan]) -> None:
        """Replace the launches of what has another configuration or home, and the regions that they touch."""
        program = self._program
        launches: dict[str, Launch] = {}
        for name, configuration in primitives.items():
            if configuration != program.primitives[name]:
                change.primitives[name] = program.primitives[name]
                if program.step.node(name) is not None:
                    launches.update((launch.name, launch) for launch in program.step.of_operator(name, configuration))
        program.primitives = primitives
        regions: set[int] = set()
        for name in change.weights:
            launches.update((launch.name, launch) for launch in program.step.of_weight(name, self._weights[name]))
            for region in program.step.held[name].regions:
                if region.id in program.number:
                    number = program.number[region.id]
                    change.homes[number] = program.homes[number]
                    program.homes[number] = home_of(program.step.held[name].home)
                    regions.add(number)
        changed = {program.slot_of[name]: launch for name, launch in launches.items() if name in program.slot_of}
        for launch in changed.values():
            regions.update(program.number[requirement.region.id] for requirement in launch.requirements)
        self._swap(changed, sorted(regions), change)

    def accept(self) -> None:
        """Keep the proposal."""
        self._required()
        self.ledger.keep()
        self._change = None

    def reject(self) -> None:
        """Take the proposal back."""
        change = self._required()
        self.ledger.undo()
        self._operators.update(change.operators)
        self._weights.update(change.weights)
        self._change = None
        if change.program is not None:
            for sign, program in ((1, change.program), (-1, self._program)):
                for region in program.rows.values():
                    self.memory_bytes += sign * region.rows.memory_bytes
            self._program = change.program
            return
        program = self._program
        for number, region in change.regions.items():
            self.memory_bytes += region.rows.memory_bytes - program.rows[number].rows.memory_bytes
        program.slots.update(change.slots)
        program.rows.update(change.regions)
        program.homes.update(change.homes)
        program.primitives = {**program.primitives, **change.primitives}
        for name, config in change.primitives.items():
            if program.step.node(name) is not None:
                program.step.place(name, config)
        for name, home in change.weights.items():
            program.step.of_weight(name, home)

    def _required(self) -> _Change:
        if self._change is None:
            raise RequestError("simulation: there is no proposal; call propose first")
        return self._change

    def _default_homes(self, operators: Iterable[str]) -> dict[str, WeightPlan]:
        tensors, operands = self.graph.tensors, self._operands
        names = [tensors[operand].name for name in operators for operand in operands[name] if operand is not None]
        return {
            name: default_home(self.graph, self._operators, name, self.machine)
            for name in dict.fromkeys(names)
            if name in self._weights
        }

    def _swap(self, launches: Mapping[int, Launch], regions: Iterable[int], change: _Change) -> None:
        """Replace the rows of some launches and of some regions."""
        numbers, program = list(regions), self._program
        change.slots.update({slot: program.slots[slot] for slot in launches if slot in program.slots})
        change.regions.update({number: program.rows[number] for number in numbers if number in program.rows})
        self.ledger.remove(
            [slot.block for slot in change.slots.values()] + [region.moves for region in change.regions.values()],
            [region.edges for region in change.regions.values()],
        )
        for region in change.regions.values():
            self.memory_bytes -= region.rows.memory_bytes
        self._add(launches, numbers)

    def _add(self, launches: Mapping[int, Launch], regions: Iterable[int]) -> None:
        """Add the rows of some launches and of some regions."""
        for slot, launch in launches.items():
            self._program.slots[slot] = self._placed(slot, launch)
        for number in regions:
            self._program.rows[number] = self._added(number)
            self.memory_bytes += self._program.rows[number].rows.memory_bytes

    def _placed(self, slot: int, launch: Launch) -> _Slot:
        """Add the tasks of a launch."""
        processors = np.asarray([point.processor for point in launch.points], dtype=np.int64)
        durations = self.costs.task_ns(launch)
        uses = []
        for requirement in launch.requirements:
            number, shape = self._interned(use_shape(launch, requirement))
            where = processors[shape.points]
            uses.append(Use(shape, where, (number, where.tobytes())))
        columns = np.empty((len(processors), 3), dtype=np.int64)
        columns[:, 0] = (slot << SLOT_BITS) + (TASKS << REQUIREMENT_BITS) + np.arange(len(processors))
        columns[:, 1], columns[:, 2] = durations, 1
        block = self.ledger.add_rows(RowBlock(columns, np.stack([processors, durations], axis=1)))
        return _Slot(launch, tuple(uses), durations, block)

    def _interned(self, shape: UseShape) -> tuple[int, UseShape]:
        key = (shape.privilege, shape.points.tobytes(), shape.colors.tobytes(), shape.boxes.tobytes())
        return self._shapes.setdefault(key, (len(self._shapes), shape))

    def _added(self, number: int) -> _Region:
        """Add the movements and dependences of a region."""
        program = self._program
        users = program.users[number]
        rows = self.cache.rows(
            program.regions[number], program.homes[number], [program.slots[slot].uses[place] for slot, place in users]
        )
        table = np.asarray(users, dtype=np.int64)
        columns, before = rows.columns.copy(), rows.moves[:, USE]
        columns[:, 0] = (
            (table[before, 0] << SLOT_BITS) + (table[before, 1] << REQUIREMENT_BITS) + np.arange(len(columns))
        )
        moves = self.ledger.add_rows(RowBlock(columns, rows.held))
        first = np.asarray([program.slots[slot].block.first for slot, _ in users], dtype=np.int64)
        return _Region(rows, moves, self.ledger.add_edges(_ends(rows.edges, rows.tasks, first, moves.first)))


@numba.njit(cache=True)
def _ends(edges: Table, tasks: Table, first: Table, moves: int) -> Table:
    """The rows at both ends of a region's edges; a task does not wait for itself."""
    result = np.empty_like(edges)
    count = 0
    for edge in range(len(edges)):
        for end in range(2):
            node = edges[edge, end]
            if node < len(tasks):
                result[count, end] = first[tasks[node, 0]] + tasks[node, 1]
            else:
                result[count, end] = moves + node - len(tasks)
        count += result[count, 0] != result[count, 1]
    return result[:count]
