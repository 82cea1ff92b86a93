"""The simulation of a training step under a plan that changes operator by operator."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.lowering.precision import apply_semantics
from maniple.operators.training.descent import SGD
from maniple.process.error import RequestError
from maniple.strategies.cost_model.analytic import Analytic
from maniple.strategies.simulation.launch_table import REQUIREMENT_BITS, restore
from maniple.strategies.simulation.liveness import Liveness, LiveRanges, RegionUses
from maniple.strategies.simulation.named_row import Named, name_movements, name_tasks
from maniple.strategies.simulation.placed_program import Program
from maniple.strategies.simulation.plan_free_step import PlanFreeStep
from maniple.strategies.simulation.prediction import MemoryTimeline, Prediction, critical_path, link_bytes, timeline
from maniple.strategies.simulation.region_cache import NOWHERE, RegionCache
from maniple.strategies.timing.ledger import UNLIMITED, Ledger, Placed, RowBlock
from maniple.strategies.timing.steady_state import Timed
from maniple.strategies.timing.tables import DURATION, END, NUMBER_BITS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan
    from maniple.operators.rules.configuration import OperatorPlan, WeightPlan
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.observe.timeline import Timeline
    from maniple.runtime.schedule.network import Column
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.simulation.expanded_program import ExpandedProgram
    from maniple.strategies.simulation.flow import Flow
    from maniple.strategies.simulation.launch_table import PlacedLaunch
    from maniple.strategies.simulation.plan_free_step import RegionKey
    from maniple.strategies.simulation.region_cache import RegionRows, Use
    from maniple.strategies.timing.ledger import Columns

__all__: list[str] = []

TASKS = (1 << REQUIREMENT_BITS) - 1
"""What stands in a task's key where a movement's has the number of its requirement: tasks come after movements."""


MOST_LOWERED = 50_000
"""Rows times memories up to which a step is lowered to see what the runtime allocates: some seconds' worth."""


@dataclass(frozen=True, slots=True, eq=False)
class _Region:
    """What one region adds to the step, as it is now."""

    rows: RegionRows
    moves: Placed
    edges: Placed


@dataclass(slots=True)
class _Change:
    """What a proposal replaced; None where there was nothing."""

    launches: dict[int, Placed | None] = field(default_factory=dict)
    regions: dict[RegionKey, _Region | None] = field(default_factory=dict)
    chains: dict[int, Placed | None] = field(default_factory=dict)
    flow: Flow | None = None


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
        optimizer: AbstractOptimizer | None = None,
        cache: RegionCache | None = None,
    ) -> None:
        plan.validate(graph, machine)
        self.graph, self.machine = graph, machine
        self.costs = costs or Analytic(machine)
        self.cache = cache or RegionCache(machine)
        self.ledger = Ledger(self.cache.network.lanes)
        self.run_ns = self.cache.network.run_ns
        """What a run takes beside its rows."""
        self._plan = plan
        self.optimizer = optimizer or SGD(lr=0.1, momentum=0.9)
        self._program = _program(self, plan)
        self._table = self._program.table
        self._launches, self._chains = dict[int, Placed](), dict[int, Placed]()
        self._regions: dict[RegionKey, _Region] = {}
        self._change: _Change | None = None
        self._live_ranges = LiveRanges(machine)
        self.memory_bytes = np.zeros(len(machine.memories), dtype=np.int64)
        self.flow: Flow | None = None
        """A run in the steady state, where there is no flush."""
        self._follow()
        self._settle(UNLIMITED)
        self._change = _Change()
        self.accept()

    @property
    def makespan_ns(self) -> int:
        """The time of a step, without a flush from one to the next, the proposal under way included."""
        return self.run_ns + (self.ledger.makespan if self.flow is None else self.flow.state.period_ns)

    @property
    def bytes(self) -> int:
        """What all rows of a step move, the proposal under way included."""
        return sum(int(region.rows.bytes.sum()) for region in self._regions.values())

    @property
    def plan(self) -> Plan:
        """The plan as it is now, the proposal under way included."""
        return self._program.planned(self._plan)

    def propose(
        self,
        operators: Mapping[str, OperatorPlan],
        weights: Mapping[str, WeightPlan] | None = None,
        limit_ns: int = UNLIMITED,
    ) -> int:
        """Change some operators, and give the makespan.

        Args:
            operators: the new degrees and processors of each, by name; legal ones.
            weights: new homes; by default the default homes of the weights that the operators use.
            limit_ns: the makespan above which the proposal will be rejected: as soon as it is known to be exceeded,
                what it reaches at least is returned, which is above the limit too.

        Raises:
            RequestError: another proposal waits for `accept` or `reject`, or there is no such operator.
        """
        if self._change is not None:
            raise RequestError("simulation: a proposal is under way; accept or reject it first")
        for name in operators:
            self._plan.operator(name)
        self._program.configure(operators, weights)
        self._change = self._follow()
        return self._settle(limit_ns)

    def accept(self) -> None:
        """Keep the proposal.

        Raises:
            RequestError: there is none, or it was given up at its limit.
        """
        self._require_change()
        self.ledger.keep()
        self._table.keep()
        self._change = None

    def reject(self) -> None:
        """Take the proposal back."""
        change = self._require_change()
        self.ledger.undo()
        self._table.undo()
        for place, block in change.launches.items():
            restore(self._launches, place, block)
        for key, region in change.regions.items():
            if key in self._regions:
                self.memory_bytes -= self._regions[key].rows.memory_bytes
            if region is not None:
                self.memory_bytes += region.rows.memory_bytes
            restore(self._regions, key, region)
        for processor, chain in change.chains.items():
            restore(self._chains, processor, chain)
        self.flow = change.flow
        self._change = None

    def _settle(self, limit_ns: int) -> int:
        """Time the rows; without a flush, runs of them that follow each other."""
        run = self._program.run()
        if run is None:
            return self.ledger.settle(limit_ns - self.run_ns) + self.run_ns
        from maniple.strategies.simulation.flow import Flow

        self.ledger.settle()
        self.flow = Flow.of(run, self.machine, self.ledger)
        return self.makespan_ns

    def _require_change(self) -> _Change:
        if self._change is None:
            raise RequestError("simulation: there is no proposal; call propose first")
        return self._change

    def _follow(self) -> _Change:
        """Replace the rows of what the program changed."""
        table = self._table
        change = _Change(
            {place: self._launches.pop(place, None) for place in table.changed},
            {key: self._regions.pop(key, None) for key in table.touched},
            {processor: self._chains.pop(processor, None) for processor in table.turned},
            self.flow,
        )
        regions = [region for region in change.regions.values() if region is not None]
        blocks = [block for block in change.launches.values() if block is not None]
        chains = [chain for chain in change.chains.values() if chain is not None]
        self.ledger.remove(blocks + [region.moves for region in regions], [region.edges for region in regions] + chains)
        for region in regions:
            self.memory_bytes -= region.rows.memory_bytes
        for place in table.changed:
            launch = table.launches.get(place)
            if launch is not None:
                base = np.asarray([(place << REQUIREMENT_BITS | TASKS) << NUMBER_BITS])
                held = self.cache.network.hold(launch.rows.held)
                self._launches[place] = self.ledger.add_rows(RowBlock(launch.rows.columns, held, base))
        for key in table.touched:
            if table.users.get(key):
                region = self._regions[key] = self._add_region(key)
                self.memory_bytes += region.rows.memory_bytes
        for processor in table.turned:
            if rows := sorted(table.turns[processor].items()):
                self._chains[processor] = self._add_chain(rows)
        return change

    def _add_chain(self, turns: list[tuple[int, Column]]) -> Placed:
        """Add the dependences by which a processor takes rows in the order of places.

        Args:
            turns: the place of each launch, and the numbers of its rows.
        """
        rows = np.concatenate([self._launches[place].first + numbers for place, numbers in turns])
        nodes = np.stack([np.zeros(len(rows), dtype=np.int64), rows], axis=1)
        waits = np.stack([np.arange(len(rows) - 1), np.arange(1, len(rows))], axis=1)
        return self.ledger.add_region(waits, len(waits), nodes, np.zeros(1, dtype=np.int64), 0)

    def _add_region(self, key: RegionKey) -> _Region:
        """Add the movements and dependences of a region."""
        program = self._program
        users = sorted(self._table.users[key].items())
        held, shape = program.held_of(key), program.layout(key)
        rows = self.cache.rows(shape, NOWHERE if held is None else held, [use for _, use in users])
        places = np.asarray([place for place, _ in users], dtype=np.int64)
        moves = self.ledger.add_rows(RowBlock(rows.columns, rows.held, places << NUMBER_BITS))
        first = self._first(users)
        return _Region(rows, moves, self.ledger.add_region(rows.edges, rows.sources, rows.tasks, first, moves.first))

    def predict(self) -> Prediction:
        """Say what the step comes to, the proposal under way included: bytes, memory, critical path, sources."""
        links = np.zeros(self.cache.network.lanes, dtype=np.int64)
        movements = 0
        for region in self._regions.values():
            np.add.at(links, region.rows.held[:, 0], region.rows.held[:, 2])
            movements += len(region.rows.moves)
        sources = Counter({"analytic": movements})
        for place in self._launches:
            sources.update(self.costs.sources(self._table.launches[place].rows.tasks))
        held, allocated = self._memory_timeline(), self.allocated_bytes()
        needed = allocated or tuple(held.liveness.peaks(len(self.machine.memories)).tolist())
        path = self._critical_path()
        names = {row.number: row.name for row in self.name_rows([row for row, _, _ in path])}
        return Prediction(
            self.makespan_ns,
            len(self.ledger.sequence),
            self.bytes,
            link_bytes(self.machine, links, self.cache.network.processors),
            needed,
            allocated is not None,
            tuple((names[row], start, end) for row, start, end in path),
            tuple(sorted(sources.items())),
            held,
            0 if self.flow is None else self.flow.state.ramp_ns,
        )

    def _critical_path(self) -> list[tuple[int, int, int]]:
        """The (row, begin, end) of the rows that make a step as long as it is, or a period of the steady state."""
        if self.flow is None:
            numbers, since = self.ledger.alive.astype(np.int64), 0
            rows = self.ledger.rows[numbers]
            timed = Timed(self.ledger.columns(), rows[:, END] - rows[:, DURATION])
        else:
            timed, numbers, state = self.flow.state.timed, self.flow.alive, self.flow.state
            since = int(timed.end.max()) - state.cycle * state.period_ns
        path = [row for row in critical_path(timed, since) if row[2] > row[1]]
        return [(int(numbers[row % len(numbers)]), max(0, begin - since), end - since) for row, begin, end in path]

    def timeline(self) -> Timeline:
        """Draw what runs when, and what is held, the proposal under way included; without a flush, ramp and all."""
        return timeline(self.machine, self.name_rows(), self._runs(), None if self.flow else self._memory_timeline())

    def _runs(self) -> list[tuple[Column, Column]]:
        """The begins and ends of rows: of the step, or of runs without a flush."""
        ends = self.ledger.rows[:, END]
        return [(ends - self.ledger.rows[:, DURATION], ends)] if self.flow is None else self.flow.drawn()

    def _memory_timeline(self) -> MemoryTimeline:
        return MemoryTimeline(self.liveness(), tuple(self.region_names()))

    @property
    def lowered_rows(self) -> int:
        """How many rows there are times memories, by which the time goes that lowering the plan takes."""
        return len(self.ledger.sequence) * len(self.machine.memories)

    def allocated_bytes(self) -> tuple[int, ...] | None:
        """Give what the step will take of each memory; see ``allocation``. None where that takes long to find out."""
        if self.flow is not None:
            return self.flow.allocated_bytes(self.costs)
        if self.lowered_rows > MOST_LOWERED:
            return None
        from maniple.strategies.simulation.allocation import allocated_bytes  # lowering, which most do without

        return allocated_bytes(self.graph, self.machine, self.plan, self.optimizer, self.costs)

    def name_rows(self, rows: Sequence[int] | None = None) -> list[Named]:
        """Name some rows, by default all."""
        wanted = np.sort(np.asarray(self.ledger.sequence if rows is None else rows, dtype=np.int64))
        launches = ((self._table.launches[place], block) for place, block in sorted(self._launches.items()))
        regions = ((self._program.region(key).name, each.rows, each.moves) for key, each in self._regions.items())
        return [*name_tasks(self.machine, launches, wanted), *name_movements(self.machine, regions, wanted)]

    def liveness(self) -> Liveness:
        """Say what lives in each memory, and when, the proposal under way included; it must not have been given up."""
        return self._live_ranges.liveness(self._regions, self._uses_of, self.flow or self.ledger)

    def _uses_of(self, key: RegionKey) -> RegionUses:
        users = sorted(self._table.users[key].items())
        return RegionUses(self._program.held_of(key) is not None, [use for _, use in users], self._first(users))

    def _first(self, users: list[tuple[int, Use]]) -> Column:
        """By use of a region, the row of its launch's first point."""
        return np.asarray([self._launches[place >> REQUIREMENT_BITS].first for place, _ in users], dtype=np.int64)

    def turns(self) -> dict[int, list[tuple[tuple[int, str, int], int, int]]]:
        """By processor, the (stage, kind, micro-batch), begin and end of each row that it takes in turn.

        Without a flush: of the ramp and of some runs after it, with the mini-batch instead.
        """
        found, flow = dict[int, list[tuple[tuple[int, str, int], int, int]]](), self.flow
        for run, (begins, over) in enumerate(self._runs()):
            for processor, turns in self._table.turns.items():
                for place, numbers in sorted(turns.items()):
                    rows = self._launches[place].first + numbers
                    stage, kind, part = self._table.launches[place].turn or (0, "", 0)
                    part = part if flow is None else run - flow.lag(int(rows[0]))
                    times = zip(begins[rows].tolist(), over[rows].tolist(), strict=True)
                    found.setdefault(processor, []).extend(((stage, kind, part), *time) for time in times if part >= 0)
        return found

    def region_names(self) -> list[str]:
        """Give the names of the regions, in the order of their numbers in a liveness."""
        return [self._program.region(key).name for key in self._regions]

    def itemsizes(self) -> list[int]:
        """Give the bytes of an element of each region, in the order of their numbers in a liveness."""
        return [self._program.layout(key)[1] for key in self._regions]

    def parts(self) -> tuple[dict[int, PlacedLaunch], dict[RegionKey, tuple[RegionRows, list[int]]]]:
        """The launches by place, and what each region adds with the places of its uses, as they are now."""
        users = self._table.users
        regions = {key: (region.rows, sorted(users[key])) for key, region in self._regions.items()}
        return {place: self._table.launches[place] for place in self._launches}, regions

    def columns(self) -> Columns:
        """The step as it is now for a full simulation: durations, holds, successors and the number of lanes.

        Rows are numbered by their keys, as in the schedule that the runtime would run.
        """
        return self.ledger.columns()


def _program(simulation: Simulation, plan: Plan) -> Program | ExpandedProgram:
    """The launches of a step: where operators take turns, what comes when depends on the plan."""
    graph, machine, optimizer = simulation.graph, simulation.machine, simulation.optimizer
    costs, shapes, semantics = simulation.costs, simulation.cache.shapes, dict(plan.semantics)
    if not plan.takes_turns:
        plan_free = PlanFreeStep(apply_semantics(graph, semantics), semantics, machine, optimizer)
        return Program(plan_free, plan, costs, shapes)
    from maniple.strategies.simulation.expanded_program import ExpandedProgram  # lowering, which most do without

    return ExpandedProgram(graph, machine, plan, costs, optimizer, shapes)
