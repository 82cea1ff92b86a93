"""The additive cost: what a step takes if nothing overlaps, as a sum over operators and over pairs of neighbours.

    t(S) = sum over operators of  task(o, c_o) + synchronisation(o, c_o)  +  sum over edges of  transfer(o, p, c_o, c_p)

(Z. Jia et al., Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks, ICML 2018, section 5.1.) All
three come from what the simulator takes too: the launches of each operator, the cost model's time of each task, and the
uses of regions, whose parts flow from tasks to tasks (see `flow`).

    task              the slowest task of each of the operator's launches, forward and backward, and what moves inside
                      an operator whose split needs an exchange
    synchronisation   what the values and gradients of its weights move between home and use, and the update; an
                      operator that shares a weight bears an equal part
    transfer          what the value between two operators, and its gradient on the way back, move
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.strategies.optcnn.flow import Flows, Layout
from maniple.strategies.optcnn.operator_tables import OperatorTables
from maniple.strategies.optcnn.placed_operators import PlacedOperators
from maniple.strategies.simulation.region_cache import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maniple.regions.columns.boxes import Boxes
    from maniple.runtime.schedule.network import Column
    from maniple.strategies.elimination.min_plus import Costs
    from maniple.strategies.interface.space import Choice, Space
    from maniple.strategies.interface.strategy import Problem
    from maniple.strategies.optcnn.operator_movement import End
    from maniple.strategies.simulation.home_boxes import HomeBoxes

    Numbers = Sequence[int] | Column
    Cuts = tuple[Numbers, Sequence[Numbers]]

__all__: list[str] = []

NS = 1e-9
ENTRIES = 64
"""So many entries are made in one step, or some more, so that a budget can end between steps."""


@final
class AdditiveCost:
    """The tables of the additive cost, made as they are asked for; what is alike shares.

    Args:
        problem: the graph and the machine.
        space: the graph's space.
        choices: of every operator those that are compared, the whole one among them.
        at_once: whether all choices of an operator are cut at once, as for who wants all tables whole.
    """

    def __init__(
        self, problem: Problem, space: Space, choices: Sequence[Sequence[Choice]], *, at_once: bool = False
    ) -> None:
        self._operators = PlacedOperators(problem, space, choices)
        self._plan_free, self.edges = self._operators.plan_free, self._operators.edges
        self._nodes, self._choices = self._plan_free.nodes, choices
        self._flows = Flows(problem.machine)
        self.tables = OperatorTables(self._operators, self._flows)
        """The operators under all of their choices."""
        self._at_once = at_once
        self._tables: dict[object, Costs] = {}
        self._own: dict[object, float] = {}
        self._synchronised: dict[object, float] = {}
        self._cuts_of: dict[object, Cuts] = {}
        kinds: dict[object, int] = {}
        self._kinds = [kinds.setdefault(self._kind(number), len(kinds)) for number in range(len(self._nodes))]
        self._filling, self._filled, self._full = self._fill(), 0, False

    @property
    def entries(self) -> int:
        """How many entries the tables of all edges have, alike edges counted once."""
        sizes = {self._edge_kind(a, b): len(self._choices[a]) * len(self._choices[b]) for a, b in self.edges}
        return sum(sizes.values())

    def fill(self, steps: int) -> bool:
        """Make the entries of the first so many steps, as far as they are not there yet.

        Returns:
            Whether those are all entries.
        """
        while self._filled < steps and not self._full:
            made = 0
            for size in self._filling:
                made += size
                if made >= ENTRIES:
                    break
            else:
                self._full = True
            self._filled += 1
        return self._full and steps >= self._filled

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
            self._tables[kind] = self._flow_s(writer, reader, (False, True))
        return self._tables[kind]

    def edge_again(self, writer: int, reader: int) -> Costs:
        """Of these seconds those that a value needs that is computed again, which are those of the value alone."""
        kind = ("again", self._edge_kind(writer, reader))
        if kind not in self._tables:
            self._tables[kind] = self._flow_s(writer, reader, (False,))
        return self._tables[kind]

    def reads_back(self, writer: int, reader: int, choice: Choice) -> bool:
        """Whether a reader's backward pass reads what another has made."""
        placed = self._operators.place(reader, choice)
        ends = self._operators.ends(writer, reader)
        return any(placed.at(("value", "operand", operand), forward=False) for _, operand, _ in ends)

    def again_ns(self, number: int, choice: Choice) -> float:
        """The nanoseconds of an operator's forward pass, and of what moves inside it, if it is computed again."""
        placed, node = self._operators.place(number, choice), self._nodes[number]
        total = float(sum(int(durations.max(initial=0)) for durations in placed.durations[: placed.forward]))
        own = [(self._layout(tensor), placed.of(("value", "result", at))) for at, tensor in enumerate(node.results)]
        for layout, uses in (*placed.values, *own):
            total += self._flow_ns(layout, *self._flows.find_made_and_read(uses))
        return total

    def _flow_s(self, writer: int, reader: int, ways: Sequence[bool]) -> Costs:
        """Seconds of what flows between two operators forward (False) and back (True)."""
        total = np.zeros((len(self._choices[writer]), len(self._choices[reader])))
        for layout, made, read, is_back in self._between(writer, reader):
            if is_back in ways:
                times = self._flows.times_ns(layout, made, read)
                total += times.T if is_back else times
        return total * NS

    def _fill(self) -> Iterator[int]:
        """Make the tables, a little at a time; gives the number of entries that were made."""
        for number, choices in enumerate(self._choices):
            if ("operator", self._kinds[number]) not in self._tables:
                for choice in choices:
                    self._own_ns(number, choice)
                    yield 1
                self.operator(number)
        for edge in self.edges:
            if self._edge_kind(*edge) not in self._tables:
                for layout, made, read, _ in self._between(*edge):
                    for one in made:
                        self._flows.times_ns(layout, [int(one)], read)
                        yield len(read)
                self.edge(*edge)

    def _between(self, writer: int, reader: int) -> Iterator[tuple[Layout, Numbers, Numbers, bool]]:
        """What flows between two operators: a region's layout, its cuts by who makes and who reads it, and the way."""
        for result, operand, _ in self._operators.ends(writer, reader):
            layout = self._layout(self._nodes[writer].results[result])
            made, _ = self._cuts(writer, ("value", "result", result))
            for read in self._cuts(reader, ("value", "operand", operand))[1]:
                yield layout, made, read, False
            given, _ = self._cuts(reader, ("gradient", "operand", operand))
            for read in self._cuts(writer, ("gradient", "result", result))[1]:
                yield layout, given, read, True

    def _own_ns(self, number: int, choice: Choice) -> float:
        """The nanoseconds of an operator's tasks and of its weights."""
        if number not in self._plan_free.needed:
            return 0.0
        key = self._kinds[number], choice
        if key not in self._own:
            placed, node = self._operators.place(number, choice), self._nodes[number]
            total = float(sum(int(durations.max(initial=0)) for durations in placed.durations))
            own = [(self._layout(tensor), placed.of(("value", "result", at))) for at, tensor in enumerate(node.results)]
            for layout, uses in (*placed.inside, *placed.values, *own):
                total += self._flow_ns(layout, *self._flows.find_made_and_read(uses))
            for tensor in self._operators.weights(number):
                home = self._operators.home(tensor, (number,), (choice,))
                total += self.synchronisation_ns(tensor, number, choice, home)
            self._own[key] = total
        return self._own[key]

    def synchronisation_ns(self, tensor: int, number: int, choice: Choice, settled: HomeBoxes) -> float:
        """What a weight moves between a home and one of its users, and its update: this user's equal part of it."""
        key = tensor, number, choice, settled.home.plan
        if key not in self._synchronised:
            self._synchronised[key] = self._synchronise_ns(tensor, number, choice, settled)
        return self._synchronised[key]

    def _synchronise_ns(self, tensor: int, number: int, choice: Choice, settled: HomeBoxes) -> float:
        blocks = settled.blocks.copy()
        blocks[:, 0] = settled.home.processors
        placed, place = self._operators.place(number, choice), self._nodes[number].operands.index(tensor)
        passes = [placed.of(("value", "operand", place))]
        if settled.home.plan.copy == "pass":  # gathered for each of them
            passes = [
                [found.use for found in placed.at(("value", "operand", place), forward=forward)]
                for forward in (True, False)
            ]
        given, _ = self._flows.find_made_and_read(placed.of(("gradient", "operand", place)))
        layout = self._layout(tensor)
        total = sum(self._flow_ns(layout, blocks, self._flows.find_made_and_read(uses)[1]) for uses in passes)
        if len(given):
            update = self._operators.added_update_ns(tensor, number, choice, settled)
            total += self._flow_ns(layout, given, [blocks]) + float(update.max(initial=0))
        return total / self._operators.sharing(tensor)

    def _flow_ns(self, layout: Layout, made: Boxes, read: Sequence[Boxes]) -> float:
        """What flows from what is made of a region to each that reads."""
        shape, _ = layout
        source, targets = self._flows.cut(shape, made), [self._flows.cut(shape, table) for table in read if len(table)]
        return float(sum(self._flows.times_ns(layout, [source], targets)[0].tolist()))

    def _cuts(self, number: int, end: End) -> Cuts:
        """How an operator cuts a region that it makes, and as each of its uses reads it, under each of its choices."""
        if self._at_once:
            return self.tables.cuts(number, end)
        key = self._plan_free.kind[number], end
        if key not in self._cuts_of:
            _, side, place = end
            node = self._nodes[number]
            shape, _ = self._layout((node.results if side == "result" else node.operands)[place])
            made, read = [], []
            for choice in self._choices[number]:
                parts, tables = self._flows.find_made_and_read(self._operators.place(number, choice).of(end))
                made.append(self._flows.cut(shape, parts))
                read.append([self._flows.cut(shape, table) for table in tables])
            # Under some choices an operator reads more often than under others.
            nothing = self._flows.cut(shape, NOWHERE)
            self._cuts_of[key] = made, [list(slot) for slot in zip_longest(*read, fillvalue=nothing)]
        return self._cuts_of[key]

    def _layout(self, tensor: int | None) -> Layout:
        """The shape of a tensor, and the bytes of an element."""
        return self._plan_free.layout(("value", -1, -1 if tensor is None else tensor), {})

    @property
    def operators(self) -> PlacedOperators:
        """The operators, placed."""
        return self._operators

    def kind(self, number: int) -> int:
        """The number of an operator's class: operators of one class cost the same."""
        return self._kinds[number]

    def _kind(self, number: int) -> object:
        """What determines an operator's costs: how it is lowered, and with how many it shares each weight."""
        return self._plan_free.kind[number], tuple(map(self._operators.sharing, self._operators.weights(number)))

    def _edge_kind(self, writer: int, reader: int) -> object:
        return (
            "edge",
            self._plan_free.kind[writer],
            self._plan_free.kind[reader],
            tuple(self._operators.ends(writer, reader)),
        )
