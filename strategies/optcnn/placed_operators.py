"""The operators of a step under choices: their launches, the regions between neighbours, and their weights.

All come from what the simulator takes too: the launches of each operator, the cost model's time of each task, and the
uses of regions, from which the rules of validity derive what moves.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, cast, final

import numpy as np

from maniple.operators.lowering.fusion.fused_launch import alike
from maniple.operators.operator.operator import HALF_DTYPES
from maniple.operators.plan.weight_home import home_among, planned_home, turns_of, users_of
from maniple.operators.rules.task_placement import memory_by_processor
from maniple.operators.training.descent import SGD
from maniple.regions.columns.boxes import HIGH, LOW
from maniple.regions.columns.validity import READ, READ_WRITE
from maniple.strategies.cost_model.analytic import Analytic
from maniple.strategies.cost_model.cost_model import LaunchTasks
from maniple.strategies.optcnn.operator_movement import Placed, PlacedUse, Region, Synchronisation
from maniple.strategies.simulation.at_home.home_launch import fused_again, kernel_at_home
from maniple.strategies.simulation.home_boxes import HomeBoxes
from maniple.strategies.simulation.operator_placement import launch_rows, operator_placement, place_use
from maniple.strategies.simulation.operator_split import split_operator
from maniple.strategies.simulation.plan_free_step import PlanFreeStep
from maniple.strategies.simulation.region_cache import NOWHERE, RegionCache

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maniple.operators.lowering.launch_form import RegionRef
    from maniple.operators.plan.plan import OperatorPlan
    from maniple.operators.plan.weight_home import Users
    from maniple.operators.rules.configuration import WeightPlan
    from maniple.regions.columns.boxes import Boxes
    from maniple.runtime.schedule.network import Column
    from maniple.strategies.interface.space import Choice, Space
    from maniple.strategies.interface.strategy import Problem
    from maniple.strategies.optcnn.flow import Layout
    from maniple.strategies.optcnn.operator_movement import End
    from maniple.strategies.simulation.plan_free_step import RegionKey
    from maniple.strategies.simulation.region_cache import Use

__all__: list[str] = []


@final
class PlacedOperators:
    """The operators of a step, placed as they are asked for; what is alike shares.

    Args:
        problem: the graph and the machine.
        space: the graph's space.
        choices: of every operator those that are compared, the whole one among them.
    """

    def __init__(self, problem: Problem, space: Space, choices: Sequence[Sequence[Choice]]) -> None:
        graph, self.machine = problem.graph, problem.machine
        self._optimizer = problem.optimizer or SGD(lr=0.1, momentum=0.9)
        self.plan_free = PlanFreeStep(graph, {}, self.machine, self._optimizer)
        self._turns = turns_of(graph, self._optimizer)
        self.choices = choices
        self._space = space
        self._nodes, self._tensors = self.plan_free.nodes, graph.tensors
        self.costs = problem.costs or Analytic(self.machine)
        """What tasks take."""
        self._cache = RegionCache(self.machine)
        self._shapes = self._cache.shapes
        self.memory_of = memory_by_processor(self.machine)
        self._placed: dict[tuple[int, Choice], Placed] = {}
        self._homes: dict[tuple[int, tuple[int, ...], tuple[Choice, ...]], HomeBoxes] = {}
        self._readers: dict[int, list[int]] = {}
        for node in self._nodes:
            if node.id in self.plan_free.needed:
                for operand in dict.fromkeys(node.operands):
                    if operand is not None:
                        self._readers.setdefault(operand, []).append(node.id)
        near = [(a, b) for b, found in enumerate(space.neighbours) for a in found if a < b]
        self.edges = tuple(sorted(edge for edge in near if self.plan_free.needed.issuperset(edge)))
        """The pairs (producer, consumer) of operators that hand something over in a step, ascending."""

    def place(self, number: int, choice: Choice) -> Placed:
        """An operator under a choice, or an alike one where that was asked for before."""
        key = self.plan_free.kind[number], choice
        if key not in self._placed:
            self._placed[key] = self._place(number, choice)
        return self._placed[key]

    def plan(self, number: int, choice: Choice) -> OperatorPlan:
        """The choice of an operator as the configuration of a plan."""
        return self._space.operators[number].plan(choice)

    def layout_at(self, number: int, end: End) -> Layout:
        """The shape of the region at an operator's end, and the bytes of an element of its values."""
        node, (_, side, place) = self._nodes[number], end
        tensor = (node.results if side == "result" else node.operands)[place]
        return self.plan_free.layout(("value", -1, -1 if tensor is None else tensor), {})

    def turn(self, tensor: int) -> int | None:
        """Of a weight that lives whole, when it chooses where; see `turns_of`."""
        return self._turns.get(self._tensors[tensor].name)

    @property
    def runs_nothing(self) -> bool:
        """Whether what tasks take is known without the launches that they are of."""
        return isinstance(self.costs, Analytic)

    @property
    def states(self) -> int:
        """How many tensors of its shape an optimizer keeps for a weight."""
        return len(self._optimizer.state_names)

    @property
    def lanes(self) -> int:
        """How many processors and links there are."""
        return self._cache.network.lanes

    def needs(self, number: int) -> bool:
        """Whether the step needs an operator."""
        return number in self.plan_free.needed

    def shared_weights(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Of all that last: the operators that use it, and what the same operators use."""
        found: dict[tuple[int, ...], list[int]] = {}
        for tensor, readers in sorted(self._readers.items()):
            if self._tensors[tensor].lasting:
                found.setdefault(tuple(sorted(readers)), []).append(tensor)
        return [(readers, tuple(tensors)) for readers, tensors in sorted(found.items())]

    def turns(self, number: int) -> bool:
        """Whether an operator's backward pass reads what its own forward pass writes."""
        form = self.place(number, self.choices[number][0]).form
        written = {need.region for launch in form.forward for need in launch.requirements if need.access != "read"}
        return any(need.region in written for launch, _ in form.backward for need in launch.requirements)

    def ends(self, writer: int, reader: int) -> list[tuple[int, int, bool]]:
        """What two operators hand over: the result, the operand, and whether nobody else uses it."""
        results, operands = self._nodes[writer].results, self._nodes[reader].operands
        return [
            (place, operands.index(result), len(self._readers[result]) == 1)
            for place, result in enumerate(results)
            if result in operands
        ]

    def partial(self, writer: int, reader: int) -> bool:
        """Whether an operator gives only a part of the gradient of what another makes."""
        return any(self._is_partial(reader, operand) for _, operand, _ in self.ends(writer, reader))

    def regions_between(self, writer: int, reader: int, both: tuple[Placed, Placed]) -> list[Region]:
        """The regions between two operators and what they add to a step if nobody else uses them."""
        found = []
        for result, operand, alone in self.ends(writer, reader):
            one, other = both
            tensor = self._nodes[writer].results[result]
            for kind, passes in (("value", (True, False)), ("gradient", (False,))):
                mine, theirs = (kind, "result", result), (kind, "operand", operand)
                uses: list[PlacedUse] = []
                for forward in passes:
                    uses += _turn(one.at(mine, forward=forward), other.at(theirs, forward=forward), forward=forward)
                home = NOWHERE
                if kind == "gradient" and self._is_partial(reader, operand):
                    home = self._elsewhere(use.use for use in uses)
                if any(use.writes for use in uses) and not all(use.writes for use in uses):
                    layout = self.plan_free.layout((kind, -1, tensor), {})
                    rows = self._cache.rows(layout, home, [use.use for use in uses])
                    found.append(Region(rows, tuple(uses), alone))
        return found

    def weights(self, number: int) -> list[int]:
        """The weights that an operator uses in a step."""
        if number not in self.plan_free.needed:
            return []
        operands = dict.fromkeys(self._nodes[number].operands)
        return [operand for operand in operands if operand is not None and self._tensors[operand].lasting]

    def sharing(self, tensor: int) -> int:
        """How many operators of a step use a tensor."""
        return len(self._readers[tensor])

    def synchronisation(self, tensor: int, operators: Sequence[int], choices: Sequence[Choice]) -> Synchronisation:
        """What a weight moves between its home and its users, and its update, if these operators are all users.

        Args:
            tensor: the weight.
            operators: its users, ascending.
            choices: theirs.
        """
        forward: list[list[PlacedUse]] = []
        values: list[PlacedUse] = []
        sums: list[PlacedUse] = []
        for number, choice in zip(operators, choices, strict=True):
            place, placed = self._nodes[number].operands.index(tensor), self.place(number, choice)
            forward.append(placed.at(("value", "operand", place), forward=True))
            # Backward passes come in reverse.
            values = [*placed.at(("value", "operand", place), forward=False), *values]
            sums = [*placed.at(("gradient", "operand", place), forward=False), *sums]
        boxes = self.home(tensor, operators, choices)
        home = boxes.home
        starts = np.cumsum([0, *map(len, forward)]).tolist()
        readers = tuple(start if found else -1 for start, found in zip(starts, forward, strict=False))
        values = [*(use for found in forward for use in found), *values]
        value_layout = self.plan_free.layout((self.plan_free.halves.get(tensor, "value"), -1, tensor), {})
        layout, lanes = self.plan_free.layout(("value", -1, tensor), {}), self._cache.network.lanes
        if not sums:
            rows = self._cache.rows(value_layout, boxes.held, [use.use for use in values])
            return Synchronisation(rows, None, readers, 0, home.processors, np.zeros(0, dtype=np.int64), lanes)
        everyone = np.arange(len(home.processors))
        write, read = (
            place_use(self._shapes.shape(access, everyone, home.colors, boxes.blocks), home.processors)
            for access in (READ_WRITE, READ)
        )
        value = self._cache.rows(value_layout, boxes.held, [*[use.use for use in values], write])
        gradient = self._cache.rows(layout, NOWHERE, [*[use.use for use in sums], read])
        update = self.update_ns(tensor, operators[0], choices[0], boxes)
        return Synchronisation(value, gradient, readers, len(sums) - 1, home.processors, update, lanes)

    def synchronisations(
        self, tensors: Sequence[int], operators: Sequence[int], choices: Sequence[Choice]
    ) -> list[Synchronisation]:
        """The same of several weights of the same users: of those that live alike the first has the update of all."""
        found = [self.synchronisation(tensor, operators, choices) for tensor in tensors]
        homes = [self.home(tensor, operators, choices) for tensor in tensors]
        updated = [at for at, one in enumerate(found) if one.gradient is not None]
        for first, *others in alike((at, homes[at].place) for at in updated):
            if others:
                together = [(tensors[at], homes[at]) for at in (first, *others)]
                found[first] = replace(found[first], update=self._updates_ns(together, operators[0], choices[0]))
            for at in others:
                found[at] = replace(found[at], update=found[at].update[:0])
        return found

    def home(self, tensor: int, operators: Sequence[int], choices: Sequence[Choice]) -> HomeBoxes:
        """Where a weight lives if these operators, under these choices, are all users."""
        key = tensor, tuple(operators), tuple(choices)
        if key not in self._homes:
            self._homes[key] = self._home(*key)
        return self._homes[key]

    def _home(self, tensor: int, operators: Sequence[int], choices: Sequence[Choice]) -> HomeBoxes:
        users = [self.users(tensor, number, choice) for number, choice in zip(operators, choices, strict=True)]
        shape = self._tensors[tensor].shape
        return self.home_boxes(tensor, home_among(shape, users, 0, self.turn(tensor)))

    def users(self, tensor: int, number: int, choice: Choice) -> Users:
        """The tiles of a weight that an operator uses, and who uses them."""
        node, config = self._nodes[number], self.plan(number, choice)
        return users_of(self.plan_free.graph.bound(node), node.operands.index(tensor), config)

    def home_boxes(self, tensor: int, home: WeightPlan) -> HomeBoxes:
        """The boxes of a weight's home."""
        return HomeBoxes.of(planned_home(self._tensors[tensor].shape, home, self.memory_of))

    def update_ns(self, tensor: int, operator: int, choice: Choice, boxes: HomeBoxes) -> Column:
        """The nanoseconds of the tasks of a weight's update at its home; the operator is one of its users."""
        return self._updates_ns([(tensor, boxes)], operator, choice)

    def added_update_ns(self, tensor: int, operator: int, choice: Choice, boxes: HomeBoxes) -> Column:
        """The same of a weight by itself; of one that is one launch with an earlier one's, what it adds to that."""
        earlier = next(
            one for one in self.weights(operator) if self.plan_free.users[one] == self.plan_free.users[tensor]
        )
        home = self.home(earlier, (operator,), (choice,))
        if earlier == tensor or earlier not in self.plan_free.finisher or home.place != boxes.place:
            return self.update_ns(tensor, operator, choice, boxes)
        alone = self.update_ns(earlier, operator, choice, home)
        added: Column = self._updates_ns([(earlier, home), (tensor, boxes)], operator, choice) - alone
        return np.maximum(added, 0)

    def _updates_ns(self, updated: Sequence[tuple[int, HomeBoxes]], operator: int, choice: Choice) -> Column:
        """The nanoseconds of the tasks of one launch that updates some weights that live alike, and have one user."""
        shapes = [self.plan_free.layout(key, {}) for key in self.plan_free.whole]
        touched: Column = np.full(len(updated[0][1].blocks), sum(prod(shape) * size for shape, size in shapes))
        flops, again = np.zeros(len(touched)), []
        keys = list(self.plan_free.whole)
        for tensor, boxes in updated:
            states = range(len(self.plan_free.own(tensor).states))
            keys += [("value", -1, tensor), ("gradient", -1, tensor), *(("state", n, tensor) for n in states)]
            own, itemsize = self.plan_free.own(tensor), self.plan_free.layout(("value", -1, tensor), {})[1]
            each_flops, each_bytes = own.cost(boxes.home.extents, itemsize)
            flops, touched = flops + each_flops, touched + each_bytes
            form, place = self.place(operator, choice).form, self._nodes[operator].operands.index(tensor)
            inside = next(own for own, end in form.bound.items() if end == ("operand", place))
            again.append(partial(form.lowering.update, form.lowering.graph.tensors[inside].name, boxes.home))
        processors = updated[0][1].home.processors
        kernel = kernel_at_home(self.plan_free, keys, {})
        tasks = LaunchTasks(flops, touched, processors, kernel, partial(fused_again, tuple(again)))
        return launch_rows(tasks, self.costs).columns[:, 1]

    def _place(self, number: int, choice: Choice) -> Placed:
        config = self.plan(number, choice)
        form = self.plan_free.form(number, dict(config.degrees))
        split = split_operator(form, dict(config.degrees), self._shapes)
        placement = operator_placement(split, config, self.memory_of, self.costs, self._shapes)
        launches = (*placement.forward, *placement.backward)
        uses: list[PlacedUse] = []
        regions: dict[str, dict[RegionKey, list[Use]]] = {"gradient": {}, "value": {}, "saved": {}}
        for at, launch in enumerate(launches):
            for ref, use in launch.uses:
                kind, tensor = cast("RegionRef", ref)
                kind = "value" if kind in HALF_DTYPES else kind  # of a weight, cast at its home
                if kind in {"value", "gradient"} and tensor in form.bound:
                    uses.append(PlacedUse((kind, *form.bound[tensor]), at, use))
                elif kind in regions:
                    regions[kind].setdefault((kind, number, tensor), []).append(use)
        inside, values, saved = (
            tuple((self.plan_free.layout(key, {number: form}), tuple(found)) for key, found in own.items())
            for own in regions.values()
        )
        times = tuple(launch.rows.columns[:, 1] for launch in launches)
        where = tuple(launch.rows.held[:, 0] for launch in launches)
        return Placed(form, len(placement.forward), times, where, tuple(uses), inside, values, saved)

    def _is_partial(self, reader: int, operand: int) -> bool:
        whole = self.place(reader, self.choices[reader][0])
        tensor = self._nodes[reader].operands[operand]
        found = whole.at(("gradient", "operand", operand), forward=False)
        if tensor is None or not found:
            return False
        return max(int(_volumes(use.use.shape.boxes).sum()) for use in found) < prod(self._tensors[tensor].shape)

    def _elsewhere(self, uses: Iterator[Use]) -> Boxes:
        """The parts of a region that others write, as if they were where they are read."""
        tables = [NOWHERE]
        for use in uses:
            if use.shape.access == READ:
                boxes = use.shape.boxes.copy()
                boxes[:, 0] = self.memory_of[use.processors]
                tables.append(boxes)
        return np.concatenate(tables)


def _turn(writer: list[PlacedUse], reader: list[PlacedUse], *, forward: bool) -> list[PlacedUse]:
    """Uses in program order: forward the producer comes first, backward the consumer."""
    return [*writer, *reader] if forward else [*reader, *writer]


def _volumes(boxes: Boxes) -> Column:
    found: Column = np.prod(boxes[:, HIGH:] - boxes[:, LOW:HIGH], axis=1)
    return found
