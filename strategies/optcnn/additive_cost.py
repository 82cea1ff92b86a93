"""The additive cost: what a step takes if nothing overlaps, as a sum over operators and over pairs of neighbours.

    t(S) = sum over operators of  task(o, c_o) + synchronisation(o, c_o)  +  sum over edges of  transfer(o, p, c_o, c_p)

(Z. Jia et al., Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks, ICML 2018, section 5.1.) All
three come from what the simulator takes too: the launches of each operator, the cost model's time of each task, and the
movements that the rules of validity derive for a region from its uses.

    task              the slowest task of each of the operator's launches, forward and backward, and what moves inside
                      an operator whose split needs an exchange
    synchronisation   what the values and gradients of its weights move between home and use, and the update; an
                      operator that shares a weight bears an equal part
    transfer          what the value between two operators, and its gradient on the way back, move

What one use of a region moves takes as long as the busiest link needs, and then the busiest processor that folds.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, cast, final

import numpy as np

from maniple.operators.optimizer import SGD
from maniple.runtime.roofline import DEFAULT_EFFICIENCY
from maniple.strategies.cost_model.analytic import Analytic
from maniple.strategies.cost_model.cost_model import LaunchTasks
from maniple.strategies.optcnn.movement import Placed, PlacedUse, Region, Synchronisation, transfer_ns
from maniple.strategies.simulation.boxes import HIGH, LOW
from maniple.strategies.simulation.operator_placement import launch_rows, operator_placement, placed_use
from maniple.strategies.simulation.operator_split import operator_split, used_tiles
from maniple.strategies.simulation.outline import Outline
from maniple.strategies.simulation.region import READ, READ_WRITE
from maniple.strategies.simulation.use import NOWHERE, RegionCache, Shapes
from maniple.strategies.simulation.weight_home import default_home

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maniple.strategies.optcnn.elimination import Costs
    from maniple.strategies.simulation.boxes import Boxes
    from maniple.strategies.simulation.network import Column
    from maniple.strategies.simulation.operator_form import OperatorForm, RegionRef
    from maniple.strategies.simulation.outline import RegionKey
    from maniple.strategies.simulation.use import RegionRows, Use
    from maniple.strategies.simulation.weight_home import WeightHome
    from maniple.strategies.space import Choice, Space
    from maniple.strategies.strategy import Problem

__all__: list[str] = []

NS = 1e-9


@final
class AdditiveCost:
    """The tables of the additive cost, made as they are asked for; what is alike shares.

    Args:
        problem: the graph and the machine.
        space: the graph's space.
        choices: of every operator those that are compared, the whole one among them.
    """

    def __init__(self, problem: Problem, space: Space, choices: Sequence[Sequence[Choice]]) -> None:
        graph, self._machine = problem.graph, problem.machine
        self._optimizer = SGD(lr=0.1, momentum=0.9)
        self._outline = Outline(graph, {}, self._machine, self._optimizer)
        self._space, self._choices = space, choices
        self._nodes, self._tensors = self._outline.nodes, graph.tensors
        self._costs, self._cache, self._shapes = Analytic(self._machine), RegionCache(self._machine), Shapes()
        self._memory_of = np.asarray([processor.memory for processor in self._machine.processors], dtype=np.int64)
        self._placed: dict[tuple[int, Choice], Placed] = {}
        self._tables: dict[object, Costs] = {}
        self._rows: dict[object, list[int]] = {}
        self._moved: dict[int, int] = {}
        self._readers: dict[int, list[int]] = {}
        for node in self._nodes:
            if node.id in self._outline.needed:
                for operand in dict.fromkeys(node.operands):
                    if operand is not None:
                        self._readers.setdefault(operand, []).append(node.id)
        kinds: dict[object, int] = {}
        self._kinds = [kinds.setdefault(self._kind(number), len(kinds)) for number in range(len(self._nodes))]
        near = [(a, b) for b, found in enumerate(space.neighbours) for a in found if a < b]
        self.edges = tuple(sorted(edge for edge in near if self._outline.needed.issuperset(edge)))
        """The pairs (producer, consumer) of operators that hand something over in a step, ascending."""
        self._filling = self._fill()

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
        """An operator under a choice, or an alike one where that was asked for before."""
        key = self._outline.kind[number], choice
        if key not in self._placed:
            self._placed[key] = self._place(number, choice)
        return self._placed[key]

    def needs(self, number: int) -> bool:
        """Whether the step needs an operator."""
        return number in self._outline.needed

    def shared_weights(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Of all that last: the operators that use it, and what the same operators use."""
        found: dict[tuple[int, ...], list[int]] = {}
        for tensor, readers in sorted(self._readers.items()):
            if self._tensors[tensor].lasting:
                found.setdefault(tuple(sorted(readers)), []).append(tensor)
        return [(readers, tuple(tensors)) for readers, tensors in sorted(found.items())]

    def turns(self, number: int) -> bool:
        """Whether an operator's backward pass reads what its own forward pass writes."""
        form = self.placed(number, self._choices[number][0]).form
        written = {need.region for launch in form.forward for need in launch.requirements if need.access != READ}
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

    def handed_over(self, writer: int, reader: int, both: tuple[Placed, Placed]) -> list[Region]:
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
                    layout = self._outline.layout((kind, -1, tensor), {})
                    rows = self._cache.rows(layout, home, [use.use for use in uses])
                    found.append(Region(rows, tuple(uses), alone))
        return found

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
            self._rows[key] = [
                sum(self._transfer_ns(region.rows) for region in self.handed_over(writer, reader, both))
                for both in ends
            ]
        return self._rows[key]

    def _transfer_ns(self, rows: RegionRows) -> int:
        """See ``transfer_ns``; what the cache of regions shares is counted once."""
        if id(rows) not in self._moved:
            self._moved[id(rows)] = transfer_ns(rows)
        return self._moved[id(rows)]

    def _kind(self, number: int) -> object:
        """What determines an operator's costs: how it is lowered, and with how many it shares each weight."""
        return self._outline.kind[number], tuple(len(self._readers[tensor]) for tensor in self._weights(number))

    def _weights(self, number: int) -> list[int]:
        """The weights that an operator uses in a step."""
        if number not in self._outline.needed:
            return []
        operands = dict.fromkeys(self._nodes[number].operands)
        return [operand for operand in operands if operand is not None and self._tensors[operand].lasting]

    def _edge_kind(self, writer: int, reader: int) -> object:
        return "edge", self._outline.kind[writer], self._outline.kind[reader], tuple(self.ends(writer, reader))

    def _place(self, number: int, choice: Choice) -> Placed:
        config = self._space.operators[number].plan(choice)
        form = self._outline.form(number, dict(config.degrees))
        split = operator_split(form, dict(config.degrees), self._shapes)
        placement = operator_placement(split, config, self._memory_of, self._costs, self._shapes)
        launches = (*placement.forward, *placement.backward)
        uses: list[PlacedUse] = []
        own: dict[RegionKey, list[Use]] = {}
        for at, launch in enumerate(launches):
            for ref, use in launch.uses:
                kind, tensor = cast("RegionRef", ref)
                if kind in {"value", "gradient"} and tensor in form.bound:
                    uses.append(PlacedUse((kind, *form.bound[tensor]), at, use))
                elif kind in {"value", "gradient"}:
                    own.setdefault((kind, number, tensor), []).append(use)
        inside = tuple(
            self._cache.rows(self._outline.layout(key, {number: form}), NOWHERE, found) for key, found in own.items()
        )
        times = tuple(launch.rows.columns[:, 1] for launch in launches)
        where = tuple(launch.rows.held[:, 0] for launch in launches)
        return Placed(form, len(placement.forward), times, where, tuple(uses), inside)

    def _is_partial(self, reader: int, operand: int) -> bool:
        whole = self.placed(reader, self._choices[reader][0])
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
                boxes[:, 0] = self._memory_of[use.processors]
                tables.append(boxes)
        return np.concatenate(tables)

    def _own_ns(self, number: int, choice: Choice) -> float:
        if number not in self._outline.needed:
            return 0.0
        placed = self.placed(number, choice)
        total = float(sum(int(durations.max(initial=0)) for durations in placed.durations))
        total += sum(map(self._transfer_ns, placed.inside))
        for tensor in self._weights(number):
            found = self.synchronisation(tensor, (number,), (choice,))
            moved = sum(self._transfer_ns(rows) for rows in (found.value, found.gradient) if rows is not None)
            total += (moved + int(found.update.max(initial=0))) / len(self._readers[tensor])
        return total

    def synchronisation(self, tensor: int, operators: Sequence[int], choices: Sequence[Choice]) -> Synchronisation:
        """What a weight moves between its home and its users, and its update, if these operators are all users.

        Args:
            tensor: the weight.
            operators: its users, ascending.
            choices: theirs.
        """
        tiles, users = [], []
        forward: list[list[PlacedUse]] = []
        values: list[PlacedUse] = []
        sums: list[PlacedUse] = []
        for number, choice in zip(operators, choices, strict=True):
            node, placed = self._nodes[number], self.placed(number, choice)
            place = node.operands.index(tensor)
            config = self._space.operators[number].plan(choice)
            used, points = used_tiles(self._outline.graph.bound(node), place, config.degrees)
            tiles.append(used)
            users.append(np.asarray(config.processors, dtype=np.int64).reshape(-1, config.replicas)[points])
            forward.append(placed.at(("value", "operand", place), forward=True))
            # Backward passes come in reverse.
            values = [*placed.at(("value", "operand", place), forward=False), *values]
            sums = [*placed.at(("gradient", "operand", place), forward=False), *sums]
        widest = max(found.shape[1] for found in users)
        owners = [np.pad(found, ((0, 0), (0, widest - found.shape[1])), mode="edge") for found in users]
        home = default_home(self._tensors[tensor].shape, np.concatenate(tiles), np.concatenate(owners), self._memory_of)
        starts = np.cumsum([0, *map(len, forward)]).tolist()
        readers = tuple(start if found else -1 for start, found in zip(starts, forward, strict=False))
        values = [*(use for found in forward for use in found), *values]
        layout, lanes = self._outline.layout(("value", -1, tensor), {}), self._cache.network.lanes
        if not sums:
            rows = self._cache.rows(layout, home.held, [use.use for use in values])
            return Synchronisation(rows, None, readers, 0, home.processors, np.zeros(0, dtype=np.int64), lanes)
        everyone = np.arange(len(home.processors))
        write, read = (
            placed_use(self._shapes.shape(access, everyone, home.colors, home.blocks), home.processors)
            for access in (READ_WRITE, READ)
        )
        value = self._cache.rows(layout, home.held, [*[use.use for use in values], write])
        gradient = self._cache.rows(layout, NOWHERE, [*[use.use for use in sums], read])
        first = operators[0]
        update = self._updates(
            self.placed(first, choices[0]).form, self._nodes[first].operands.index(tensor), layout[1], home
        )
        return Synchronisation(value, gradient, readers, len(sums) - 1, home.processors, update, lanes)

    def _updates(self, form: OperatorForm, place: int, itemsize: int, home: WeightHome) -> Column:
        """The nanoseconds of the tasks of a weight's update."""
        inside = next(own for own, end in form.bound.items() if end == ("operand", place))
        name = form.lowering.graph.tensors[inside].name
        volumes = _volumes(home.blocks)
        size = itemsize * (2 + len(self._optimizer.state_names))
        again = partial(form.lowering.update, name, home.plan())
        flops = np.asarray(4.0 * volumes, dtype=np.float64)
        tasks = LaunchTasks(flops, volumes * size, home.processors, DEFAULT_EFFICIENCY, again)
        return launch_rows(tasks, self._costs).columns[:, 1]


def _turn(writer: list[PlacedUse], reader: list[PlacedUse], *, forward: bool) -> list[PlacedUse]:
    """Uses in program order: forward the producer comes first, backward the consumer."""
    return [*writer, *reader] if forward else [*reader, *writer]


def _volumes(boxes: Boxes) -> Column:
    found: Column = np.prod(boxes[:, HIGH:] - boxes[:, LOW:HIGH], axis=1)
    return found
