"""Choice tables: an operator under all of its choices at once: its tasks, their times, and how they use regions.

What `PlacedOperators.place` gives of one choice, launch by launch, is here one table for all choices whose form is the
same: the tasks of the first choice, then those of the second, and so on. The same arithmetic on longer columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.operator.operator import HALF_DTYPES
from maniple.process.error import RunError
from maniple.regions.columns.boxes import HIGH, LOW
from maniple.runtime.schedule.roofline import Kernel, computing_type, efficiency
from maniple.strategies.cost_model.cost_model import LaunchTasks
from maniple.strategies.optcnn.split_table import SplitTable
from maniple.strategies.optcnn.use_table import BoxLists, UseTable, first_in_memory
from maniple.strategies.simulation.operator_split import boxes_of_bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.operators.graph.node import Node
    from maniple.operators.lowering.launch_form import LaunchForm, RegionRef, RequirementForm
    from maniple.operators.plan.plan import OperatorPlan
    from maniple.operators.rules.tile import TensorRole
    from maniple.regions.columns.boxes import Boxes
    from maniple.runtime.schedule.launch import Launch
    from maniple.runtime.schedule.network import Column
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.optcnn.flow import Layout
    from maniple.strategies.optcnn.operator_movement import End
    from maniple.strategies.optcnn.use_table import Mask
    from maniple.strategies.simulation.operator_form import OperatorForm
    from maniple.strategies.timing.tables import Table

    Part = tuple[Boxes, Column]
    """Boxes that tiles use, and by tile which of them; -1: none."""

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where the points of an operator run, under each of some choices.

    Args:
        processors: of the replicas of each point, choice by choice.
        starts: of each choice the place of the first.
        replicas: of each choice how many processors compute each point.
    """

    processors: Column
    starts: Column
    replicas: Column

    @classmethod
    def of(cls, plans: Sequence[OperatorPlan]) -> Places:
        """Those of some configurations."""
        counts = np.asarray([len(plan.processors) for plan in plans], dtype=np.int64)
        processors = np.asarray([processor for plan in plans for processor in plan.processors], dtype=np.int64)
        replicas = np.asarray([plan.replicas for plan in plans], dtype=np.int64)
        return cls(processors, np.cumsum(counts) - counts, replicas)

    def first(self, choices: Column, points: Column) -> Column:
        """The place of the first processor of some points."""
        found: Column = self.starts[choices] + points * self.replicas[choices]
        return found


@final
@dataclass(frozen=True, slots=True, eq=False)
class TabledUse:
    """A use of a region at an operator's end.

    Args:
        end: the region.
        launch: the number of the launch.
        use: the use.
    """

    end: End
    launch: int
    use: UseTable


@final
@dataclass(frozen=True, slots=True, eq=False)
class FormTable:
    """An operator under all choices of one form; there is nothing where a choice has another one.

    Args:
        form: the form.
        there: by choice, whether it has this form.
        forward: how many of the launches, the first ones, are of the forward pass.
        slowest: by launch and choice the nanoseconds of the slowest task.
        uses: of the regions that others use too, in program order.
        inside: of each region of its own that holds gradients the layout and the uses, in program order.
        values: the same of those that hold values.
        saved: the same of what its forward pass keeps for its backward pass alone.
    """

    form: OperatorForm
    there: Mask
    forward: int
    slowest: Table
    uses: tuple[TabledUse, ...]
    inside: tuple[tuple[Layout, tuple[UseTable, ...]], ...]
    values: tuple[tuple[Layout, tuple[UseTable, ...]], ...]
    saved: tuple[tuple[Layout, tuple[UseTable, ...]], ...]

    def of(self, end: End) -> list[UseTable]:
        """All uses of a region, in program order."""
        return [found.use for found in self.uses if found.end == end]

    def at(self, end: End, *, forward: bool) -> list[UseTable]:
        """The uses of a region by the launches of one pass."""
        return [found.use for found in self.uses if found.end == end and (found.launch < self.forward) == forward]


def form_table(
    form: OperatorForm,
    there: Mask,
    degrees: dict[str, Column],
    places: Places,
    memory_of: Column,
    costs: CostModel | None,
    layout: Callable[[RegionRef], Layout],
) -> FormTable:
    """Place an operator under all choices of a form.

    Args:
        form: the form.
        there: by choice of the operator, whether it has this form.
        degrees: by factor of the operator, in its rule's order, the parts under each choice.
        places: the processors under each.
        memory_of: the memory of each processor.
        costs: what tasks take; None: nothing is asked.
        layout: the shape of a region of the operator's own, and the bytes of an element.
    """
    make = _Placing(form, there, degrees, places, memory_of, costs)
    launches = [*form.forward, *(launch for launch, _ in form.backward)]
    uses: list[TabledUse] = []
    regions: dict[str, dict[RegionRef, list[UseTable]]] = {"gradient": {}, "value": {}, "saved": {}}
    slowest = np.zeros((len(launches), len(there)), dtype=np.int64)
    for at, launch in enumerate(launches):
        slowest[at], found = make.place(launch)
        for ref, use in found:
            kind, tensor = ref
            kind = "value" if kind in HALF_DTYPES else kind  # of a weight, cast at its home
            if kind in {"value", "gradient"} and tensor in form.bound:
                uses.append(TabledUse((kind, *form.bound[tensor]), at, use))
            elif kind in regions:
                regions[kind].setdefault((kind, tensor), []).append(use)
    own = (tuple((layout(ref), tuple(found)) for ref, found in kinds.items()) for kinds in regions.values())
    return FormTable(form, there, len(form.forward), slowest, tuple(uses), *own)


@final
class _Placing:
    """The tasks of the nodes of a form under all choices."""

    def __init__(
        self,
        form: OperatorForm,
        there: Mask,
        degrees: dict[str, Column],
        places: Places,
        memory_of: Column,
        costs: CostModel | None,
    ) -> None:
        self._regions, self._graph = form.lowering.regions, form.lowering.graph
        self._degrees, self._places, self._memory_of, self._costs = degrees, places, memory_of, costs
        self._choices, self._count = np.flatnonzero(there), len(there)
        self._crowded = len(np.unique(memory_of)) < len(memory_of)
        self._tables: dict[int, SplitTable] = {}
        self._flops: dict[int, tuple[Column, Column]] = {}
        self._rows: dict[tuple[int, bool], tuple[Column, Column]] = {}
        self._parts: dict[tuple[int, tuple[TensorRole, int] | None], Part] = {}
        self._used: dict[tuple[int, bool, tuple[TensorRole, int] | None], BoxLists] = {}

    def place(self, launch: LaunchForm) -> tuple[Column, list[tuple[RegionRef, UseTable]]]:
        """The slowest task of a launch under each choice, and what it uses."""
        node, forward = launch.node, launch.part == "forward"
        table = self._table(node)
        rows, processors = self._placed(node, forward=forward)
        uses, types, touched = [], list[str](), np.zeros(len(table.split), dtype=np.int64)
        for requirement in launch.requirements:
            region = self._regions.region(requirement.region)
            boxes, where = self._part(node, requirement.tiles)
            volumes = np.prod(boxes[:, HIGH:] - boxes[:, LOW:HIGH], axis=1)
            there = where >= 0
            touched[there] += volumes[where[there]] * region.itemsize
            types.append(region.dtype)
            uses.append((requirement.region, self._use(node, requirement, forward=forward)))
        slowest = np.zeros(self._count, dtype=np.int64)
        if self._costs is not None:
            if node.id not in self._flops:
                self._flops[node.id] = table.flops(node.operator)
            flops = (self._flops[node.id][0 if forward else 1] * launch.share).astype(float)
            kernel = Kernel(efficiency(launch.kind), node.operator.multiplies_in or computing_type(types))
            tasks = LaunchTasks(flops[rows], touched[rows], processors, kernel, no_launch)
            np.maximum.at(slowest, self._choices[table.split[rows]], self._costs.tasks_ns(tasks))
        return slowest, uses

    def _table(self, node: Node) -> SplitTable:
        if node.id not in self._tables:
            bound = self._graph.bound(node)
            columns = np.ones((len(self._choices), len(bound.factors)), dtype=np.int64)
            for place, factor in enumerate(bound.factors):
                if factor.name in self._degrees:
                    columns[:, place] = self._degrees[factor.name][self._choices]
            self._tables[node.id] = SplitTable(bound, columns)
        return self._tables[node.id]

    def _placed(self, node: Node, *, forward: bool) -> tuple[Column, Column]:
        """The rows of a node's tasks, replicas next to each other, and where they run; see `keep_replicas`."""
        key = node.id, forward
        if key not in self._rows:
            table, places = self._table(node), self._places
            replicated = ~table.folds.any(axis=0) & forward
            counts = np.where(replicated, places.replicas[self._choices], 1)[table.split]
            rows = np.repeat(np.arange(len(counts)), counts)
            replica = np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]
            within = {factor: degrees[self._choices] for factor, degrees in self._degrees.items()}
            first = places.first(self._choices[table.split], table.points_within(within))
            processors = places.processors[first[rows] + replica]
            if self._crowded:
                kept = first_in_memory(rows, self._memory_of[processors])
                rows, processors = rows[kept], processors[kept]
            self._rows[key] = rows, processors
        return self._rows[key]

    def _part(self, node: Node, tiles: tuple[TensorRole, int] | None) -> Part:
        """What the tiles of a node use of a tensor; None: all of the clock."""
        key = node.id, tiles
        if key not in self._parts:
            table = self._table(node)
            if tiles is None:
                bounds, rows = np.repeat([[[0, 2]]], len(table.split), axis=0), np.arange(len(table.split))
            else:
                bounds, rows = table.used(*tiles)
            where = np.full(len(table.split), -1, dtype=np.int64)
            where[rows] = np.arange(len(rows))
            self._parts[key] = boxes_of_bounds(bounds), where
        return self._parts[key]

    def _use(self, node: Node, requirement: RequirementForm, *, forward: bool) -> UseTable:
        key, table = (node.id, forward, requirement.tiles), self._table(node)
        if key not in self._used:
            boxes, where = self._part(node, requirement.tiles)
            rows, processors = self._placed(node, forward=forward)
            kept = np.flatnonzero(where[rows] >= 0)
            found = boxes[where[rows[kept]]]
            found[:, 0] = processors[kept]
            starts = np.searchsorted(self._choices[table.split[rows[kept]]], np.arange(self._count + 1))
            self._used[key] = BoxLists(starts, found)
        sums = np.full(self._count, requirement.access == "gradient")
        role, place = requirement.slot
        if role == "result" and requirement.access == "result":
            sums[self._choices] = table.folds[place]
        return UseTable(requirement.access == "read", sums, self._used[key])


def no_launch() -> Launch:
    """No launch: for tasks of several choices, which no cost model that runs launches is asked about."""
    raise RunError("the tasks of all choices are no launch: only a cost model that runs nothing is asked about them")
