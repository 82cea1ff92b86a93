"""Operator tables: what operators take and move under all of their choices, each found at once.

    made of    how a region is cut by who makes it, choice by choice, and as each use reads it (`cuts`)
    moved      what flows inside an operator, and its slowest tasks (`own_ns`, `again_ns`)

Of each it is what `AdditiveCost` finds for a single choice, to the last bit.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.runtime.schedule.network import Column
from maniple.strategies.optcnn.choice_table import Places, form_table
from maniple.strategies.optcnn.split_table import SplitTable
from maniple.strategies.optcnn.use_table import BoxLists, joined, made_and_read, repeated

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maniple.operators.lowering.launch_form import RegionRef
    from maniple.runtime.schedule.network import Rates
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.optcnn.choice_table import FormTable
    from maniple.strategies.optcnn.flow import Flows, Layout
    from maniple.strategies.optcnn.operator_movement import End
    from maniple.strategies.optcnn.placed_operators import PlacedOperators
    from maniple.strategies.optcnn.use_table import Pairs, UseTable
    from maniple.strategies.simulation.operator_form import OperatorForm
    from maniple.strategies.timing.tables import Table

    Own = tuple[Layout, Sequence[UseTable]]

__all__: list[str] = []


@final
class OperatorTables:
    """The tables of operators, made as they are asked for; what is alike shares.

    Args:
        operators: the operators.
        flows: what moves.
    """

    def __init__(self, operators: PlacedOperators, flows: Flows) -> None:
        self.operators, self.flows = operators, flows
        self._forms: dict[int, tuple[FormTable, ...]] = {}
        self._places: dict[int, Places] = {}
        self._splits: dict[int, SplitTable] = {}
        self._cut: dict[tuple[int, End, bool | None, tuple[Pairs, ...]], tuple[Column, list[Column]]] = {}

    def count(self, number: int) -> int:
        """How many choices an operator has."""
        return len(self.operators.choices[number])

    def places(self, number: int) -> Places:
        """Where the points of an operator run."""
        kind = self.operators.plan_free.kind[number]
        if kind not in self._places:
            plans = [self.operators.plan(number, choice) for choice in self.operators.choices[number]]
            self._places[kind] = Places.of(plans)
        return self._places[kind]

    def split(self, number: int) -> SplitTable:
        """The tiles of an operator as it is, under each choice."""
        plan_free = self.operators.plan_free
        kind = plan_free.kind[number]
        if kind not in self._splits:
            bound = plan_free.graph.bound(plan_free.nodes[number])
            self._splits[kind] = SplitTable(bound, self._degrees(number))
        return self._splits[kind]

    def _degrees(self, number: int) -> Table:
        """The parts of every factor of an operator under each choice."""
        found = np.asarray([choice.degrees for choice in self.operators.choices[number]], dtype=np.int64)
        return found.reshape(self.count(number), -1)

    def forms(self, number: int) -> tuple[FormTable, ...]:
        """An operator under all choices, by form."""
        kind = self.operators.plan_free.kind[number]
        if kind not in self._forms:
            self._forms[kind] = self._find_forms(number)
        return self._forms[kind]

    def own_ns(self, number: int) -> Rates:
        """By choice the nanoseconds of an operator's tasks, and of what moves inside it."""
        total = np.zeros(self.count(number))
        for form in self.forms(number):
            total += form.slowest.sum(axis=0)
        return self._add_flows(total, number, ("inside", "values"))

    def again_ns(self, number: int) -> Rates:
        """By choice the same of its forward pass, if that is computed again."""
        total = np.zeros(self.count(number))
        for form in self.forms(number):
            total += form.slowest[: form.forward].sum(axis=0)
        return self._add_flows(total, number, ("values",))

    def reads_back(self, number: int, operands: Iterable[int]) -> Column:
        """By choice whether an operator's backward pass reads some operands."""
        found = np.zeros(self.count(number), dtype=bool)
        for form in self.forms(number):
            reads = any(form.at(("value", "operand", operand), forward=False) for operand in operands)
            found |= form.there & reads
        return found

    def cuts(
        self, number: int, end: End, *, forward: bool | None = None, others: tuple[Pairs, ...] = ()
    ) -> tuple[Column, list[Column]]:
        """How an operator cuts a region that it makes, and as each use reads it, choice by choice.

        Args:
            number: the operator.
            end: the region.
            forward: of which pass the uses are; None: of both.
            others: its processors with those that use the region alike, and so on; see `repeated`.
        """
        key = self.operators.plan_free.kind[number], end, forward, others
        if key not in self._cut:
            shape, made, read = self.operators.layout_at(number, end)[0], list[BoxLists](), list[Column]()
            for form in self.forms(number):
                uses = form.of(end) if forward is None else form.at(end, forward=forward)
                uses = [repeated(use, others) for use in uses] if others else uses
                mine, tables = made_and_read(uses, self.count(number), self.operators.memory_of)
                made.append(mine)
                read += [self.flows.cut_all(shape, table) for table in tables]
            self._cut[key] = self.flows.cut_all(shape, joined(made, self.count(number))), read
        return self._cut[key]

    def _add_flows(self, total: Rates, number: int, kinds: Sequence[str]) -> Rates:
        """What flows inside an operator, and between the tasks that have a part of its results, added in order."""
        node = self.operators.plan_free.nodes[number]
        for form in self.forms(number):
            for kind in kinds:
                for layout, uses in form.inside if kind == "inside" else form.values:
                    total = total + self._flow_ns(number, layout, uses)
            for place in range(len(node.results)):
                end: End = ("value", "result", place)
                total = total + self._flow_ns(number, self.operators.layout_at(number, end), form.of(end))
        return total

    def _flow_ns(self, number: int, layout: Layout, uses: Sequence[UseTable]) -> Rates:
        """By choice what flows from what is made of a region to each use that reads it."""
        shape, total = layout[0], np.zeros(self.count(number))
        made, read = made_and_read(uses, self.count(number), self.operators.memory_of)
        if read:
            source = self.flows.cut_all(shape, made)
            for table in read:
                total = total + self.flows.between_ns(layout, source, self.flows.cut_all(shape, table))
        return total

    def _find_forms(self, number: int) -> tuple[FormTable, ...]:
        operators, plan_free = self.operators, self.operators.plan_free
        factors = plan_free.graph.bound(plan_free.nodes[number]).factors
        degrees = dict(zip([factor.name for factor in factors], self._degrees(number).T, strict=True))
        places, count = self.places(number), self.count(number)
        split = np.zeros(count, dtype=bool)
        for factor in plan_free.exchanged[number]:
            split |= degrees[factor] > 1 if factor in degrees else False
        found = []
        for composite in (False, True):
            there = split == composite
            if not there.any():
                continue
            form = plan_free.form(number, {factor: int(own[there][0]) for factor, own in degrees.items()})
            table = form_table(
                form,
                there,
                degrees,
                places,
                operators.memory_of,
                self._costs(),
                partial(self._layout, number, form),
            )
            if self._costs() is None:
                for place in np.flatnonzero(there).tolist():
                    durations = operators.place(number, operators.choices[number][place]).durations
                    table.slowest[:, place] = [int(each.max(initial=0)) for each in durations]
            found.append(table)
        return tuple(found)

    def _layout(self, number: int, form: OperatorForm, ref: RegionRef) -> Layout:
        """The shape of a region of an operator's own, and the bytes of an element."""
        kind, tensor = ref
        return self.operators.plan_free.layout((kind, number, tensor), {number: form})

    def _costs(self) -> CostModel | None:
        """What tells what tasks take without a launch of them; None: nothing does."""
        return self.operators.costs if self.operators.runs_nothing else None
