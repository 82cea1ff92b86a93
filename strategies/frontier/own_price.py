"""Own prices: bytes and nanoseconds of an operator by choice and home, of all choices at once.

    nanoseconds    its tasks and what moves inside it, what its weights move between home and use, and their updates
    bytes          see `additive_memory`

`single_price` asks for one choice after the other instead. Both give the same numbers, bit for bit; it is for costs
that are measured, where a task's time is that of a launch, which is made for one choice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.process.error import RequestError
from maniple.regions.columns.boxes import HIGH, LOW
from maniple.strategies.cost_model.cost_model import LaunchTasks
from maniple.strategies.frontier.homes import homes_of
from maniple.strategies.optcnn.choice_table import no_launch
from maniple.strategies.optcnn.home_table import HOMES, HOMES_IN_PARTS, NO_TURN, PASSING, SPREAD, home_tables, tiles_of
from maniple.strategies.simulation.at_home.home_launch import kernel_at_home
from maniple.strategies.simulation.plan_free_step import RegionKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from maniple.runtime.schedule.network import Column, Rates
    from maniple.strategies.frontier.additive_memory import AdditiveMemory
    from maniple.strategies.optcnn.additive_cost import AdditiveCost
    from maniple.strategies.optcnn.flow import Layout
    from maniple.strategies.optcnn.home_table import HomeTable
    from maniple.strategies.optcnn.operator_movement import End
    from maniple.strategies.optcnn.use_table import BoxLists, Mask, Pairs

    Term = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
    Tabled = list[tuple[int, HomeTable | None]]
    """The weights of an operator, and where each lives; None: nothing is counted but what is used of one."""

__all__: list[str] = []

NS = 1e-9


@final
@dataclass(frozen=True, slots=True)
class Turns:
    """How often operators take their turn in a step.

    Args:
        micro_batches: into how many parts the samples are cut.
        rounds: how many times of one part a step takes, those of waiting counted too.
        flying: of how many parts at once what forward leaves for backward is held.
    """

    micro_batches: int = 1
    rounds: float = 1.0
    flying: int = 1


ONCE = Turns()
"""A batch that is not cut."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class KnownPrices:
    """What is known of weights, however long a step waits, and whatever is in flight.

    Args:
        homes: of operators and weights where these live, by number of the home.
        synchronised: of operators, weights and homes the nanoseconds, by choice.
        cut: of homes how they cut their weight, by choice.
        at_home: of operators, weights and homes how long gradients take there, and the update, by choice.
    """

    homes: dict[tuple[int, int], list[HomeTable]] = field(default_factory=dict)
    synchronised: dict[tuple[int, int, int], Rates] = field(default_factory=dict)
    cut: dict[object, tuple[BoxLists, Column]] = field(default_factory=dict)
    at_home: dict[object, tuple[BoxLists, tuple[Rates, Rates]]] = field(default_factory=dict)


@final
class OwnPrices:
    """The prices of operators under all of their choices.

    Args:
        cost: the times.
        memory: the bytes.
        turns: how often operators take their turn in a step.
        known: what is known of the same operators with as many micro-batches.
    """

    def __init__(
        self, cost: AdditiveCost, memory: AdditiveMemory, turns: Turns = ONCE, known: KnownPrices | None = None
    ) -> None:
        self._cost, self._memory, self._turns = cost, memory, turns
        self._tables, self._operators = cost.tables, cost.operators
        self._plan_free = cost.operators.plan_free
        self.known = known or KnownPrices()

    @property
    def count(self) -> int:
        """How many homes a weight may have."""
        return HOMES_IN_PARTS if self._turns.micro_batches > 1 else HOMES

    def price(self, number: int) -> Term:
        """The bytes and nanoseconds of an operator, by choice and home.

        Args:
            number: the operator.
        """
        if not self._operators.runs_nothing:
            return single_price(self._cost, self._memory, number, self._turns)
        return self.sizes(number), self.ticks(number)

    def ticks(self, number: int) -> npt.NDArray[np.int64]:
        """The nanoseconds of an operator, by choice and home.

        Args:
            number: the operator.
        """
        if not self._operators.runs_nothing:
            return single_price(self._cost, self._memory, number, self._turns)[1]
        tick = np.zeros((self._tables.count(number), self.count), dtype=np.int64)
        weights = self._operators.weights(number)
        moved = [self._moved_ns(number, weights, home) for home in range(self.count)]
        if self._operators.needs(number):
            total = self._tables.own_ns(number) * self._turns.rounds
            for tensor in weights:
                total = total + self._synchronised_ns(number, tensor, SPREAD)
            tick += np.rint(total * NS / NS).astype(np.int64)[:, None]
        for home in range(self.count):
            tick[:, home] += np.rint(moved[home] - moved[SPREAD]).astype(np.int64)
        return tick

    def sizes(self, number: int, *, again: bool = False) -> npt.NDArray[np.int64]:
        """The bytes of an operator, by choice and home.

        Args:
            number: the operator.
            again: whether its results are computed again.
        """
        weights, found = self._operators.weights(number), []
        for home in range(self.count):
            homes: Tabled = [(tensor, self.homes(number, tensor)[home]) for tensor in weights]
            found.append(self._memory.all_bytes(number, homes, again=again))
        return np.stack(found, axis=1)

    def spread_ns(self, number: int, weights: Sequence[int]) -> Rates:
        """By choice what some weights of an operator move, and their updates, if each lives where its first home is."""
        operators, choices = self._operators, self._operators.choices[number]
        if operators.runs_nothing:
            return self._moved_ns(number, weights, SPREAD)
        found = [
            sum(
                self._cost.synchronisation_ns(tensor, number, choice, operators.home(tensor, (number,), (choice,)))
                for tensor in weights
            )
            for choice in choices
        ]
        return np.asarray(found, dtype=np.float64)

    def _moved_ns(self, number: int, weights: Sequence[int], home: int) -> Rates:
        total = np.zeros(self._tables.count(number))
        for tensor in weights:
            total = total + self._synchronised_ns(number, tensor, home)
        return total

    def homes(self, number: int, tensor: int) -> list[HomeTable]:
        """Where a weight of an operator lives, by number of the home."""
        key = number, tensor
        if key not in self.known.homes:
            node, places = self._plan_free.nodes[number], self._tables.places(number)
            table = self._tables.split(number)
            bounds, rows = table.used("operand", node.operands.index(tensor))
            starts = np.searchsorted(table.split[rows], np.arange(self._tables.count(number) + 1))
            firsts = places.first(table.split[rows], table.number[rows])
            used = starts, tiles_of(bounds), firsts, places.replicas, places.processors
            info, turn = self._plan_free.tensors[tensor], self._operators.turn(tensor)
            kinds = self.count if info.kind == "parameter" else PASSING  # a buffer has only those before
            kinds = 1 if self._operators.sharing(tensor) > 1 else kinds
            memory_of = self._operators.memory_of
            self.known.homes[key] = home_tables(info.shape, used, memory_of, NO_TURN if turn is None else turn, kinds)
        return self.known.homes[key]

    def _synchronised_ns(self, number: int, tensor: int, home: int) -> Rates:
        """By choice what a weight moves between a home and its user, and its update: this user's equal part of it."""
        key = number, tensor, home
        if key not in self.known.synchronised:
            self.known.synchronised[key] = self.synchronised_ns(number, tensor, self.homes(number, tensor)[home])
        return self.known.synchronised[key]

    def synchronised_ns(self, number: int, tensor: int, home: HomeTable, others: tuple[Pairs, ...] = ()) -> Rates:
        """By choice what a weight moves between where it lives and its user, and its update: this user's equal part.

        Args:
            number: the operator that uses it.
            tensor: the weight.
            home: where it lives under each choice.
            others: the operator's processors with those that use the weight alike, and so on; all of it is one price.
        """
        node, tables = self._plan_free.nodes[number], self._tables
        value: End = ("value", "operand", node.operands.index(tensor))
        gradient: End = ("gradient", "operand", value[2])
        layout = self._operators.layout_at(number, value)
        lives = self._lives(layout, home)

        def read_ns(*, forward: bool | None = None) -> Rates:
            found = np.zeros(tables.count(number))
            for read in tables.cuts(number, value, forward=forward, others=others)[1]:
                found = found + tables.flows.between_ns(layout, lives, read)
            return found

        total = read_ns()
        if home.passing.any():  # gathered for each of them
            total = np.where(
                home.passing, (read_ns(forward=True) + read_ns(forward=False)) * self._turns.micro_batches, total
            )
        contributes = np.zeros(tables.count(number), dtype=bool)
        for form in tables.forms(number):
            contributes |= form.there & bool(form.of(gradient))
        if contributes.any():
            # Those of each micro-batch go home by themselves, or their sum does.
            often = np.where(home.summed, self._turns.micro_batches, 1)
            given, updated = self._at_home_ns(number, tensor, home, others)
            added = given * often + updated
            total = np.where(contributes, total + added, total)
        part: Rates = total / self._operators.sharing(tensor)
        return part

    def _lives(self, layout: Layout, home: HomeTable) -> Column:
        """By choice the cut of a weight where it lives; of homes that lie alike it is found once."""
        key = layout[0], id(home.blocks)
        if key not in self.known.cut:
            self.known.cut[key] = home.blocks, self._tables.flows.cut_all(layout[0], home.blocks)
        return self.known.cut[key][1]

    def _at_home_ns(self, number: int, tensor: int, home: HomeTable, others: tuple[Pairs, ...]) -> tuple[Rates, Rates]:
        """By choice how long gradients take home, and the update there; of homes that lie alike they are found once."""
        key = number, tensor, id(home.blocks), others
        if key not in self.known.at_home:
            end: End = ("gradient", "operand", self._plan_free.nodes[number].operands.index(tensor))
            layout, given = self._operators.layout_at(number, end), self._tables.cuts(number, end, others=others)[0]
            moved = self._tables.flows.between_ns(layout, given, self._lives(layout, home))
            # The blocks stay, so their identity tells what lies alike.
            self.known.at_home[key] = home.blocks, (moved, self._updated_ns(number, tensor, home))
        return self.known.at_home[key][1]

    def _updated_ns(self, number: int, tensor: int, home: HomeTable) -> Rates:
        """By choice what the slowest task of a weight's update adds; see `PlacedOperators.added_update_ns`."""
        users, mine = self._plan_free.users, self._operators.weights(number)
        earlier = next(one for one in mine if users[one] == users[tensor])
        alone = self._update_ns([(tensor, home)])
        owner = home.blocks.owner
        if earlier != tensor and earlier in self._plan_free.finisher:
            before = self.homes(number, earlier)[SPREAD]
            same = _alike(before, home)
            here, there = same[owner], same[before.blocks.owner]
            both = self._update_ns([(earlier, _rows(before, there)), (tensor, _rows(home, here))])
            alone[here] = np.maximum(both - self._update_ns([(earlier, _rows(before, there))]), 0)
        most = np.zeros(self._tables.count(number), dtype=np.int64)
        np.maximum.at(most, owner, alone)
        return most.astype(np.float64)

    def _update_ns(self, updated: Sequence[tuple[int, HomeTable]]) -> Column:
        """The nanoseconds of each task of updates that are one launch; see `PlacedOperators`."""
        plan_free, boxes = self._plan_free, updated[0][1].blocks.boxes
        shapes = [plan_free.layout(key, {}) for key in plan_free.whole]
        touched = np.full(len(boxes), sum(prod(shape) * size for shape, size in shapes))
        flops, keys = np.zeros(len(boxes)), list[RegionKey](plan_free.whole)
        for tensor, home in updated:
            states = range(len(plan_free.own(tensor).states))
            keys += [("value", -1, tensor), ("gradient", -1, tensor), *(("state", n, tensor) for n in states)]
            shape, itemsize = plan_free.layout(("value", -1, tensor), {})
            sides = home.blocks.boxes[:, HIGH:] - home.blocks.boxes[:, LOW:HIGH]
            each_flops, each_bytes = plan_free.own(tensor).cost(tuple(sides[:, : len(shape)].T), itemsize)
            flops, touched = flops + each_flops, touched + each_bytes
        kernel = kernel_at_home(plan_free, keys, {})
        return self._operators.costs.tasks_ns(LaunchTasks(flops, touched, boxes[:, 0], kernel, no_launch))


def single_price(
    cost: AdditiveCost, memory: AdditiveMemory, number: int, turns: Turns = ONCE, *, again: bool = False
) -> Term:
    """The bytes and nanoseconds of an operator, by choice and home, each choice by itself; see `OwnPrices.price`."""
    if turns != ONCE:
        raise RequestError("stages are searched for by the roofline's costs: leave --costs out, or space 'stages'")
    choices = cost.operators.choices[number]
    times = np.rint(cost.operator(number) / NS).astype(np.int64)
    size, tick = (np.zeros((len(choices), HOMES), dtype=np.int64) for _ in range(2))
    for place, choice in enumerate(choices):
        found = homes_of(cost.operators, number, choice)
        moved = [
            sum(cost.synchronisation_ns(tensor, number, choice, lives) for tensor, lives in weights)
            for weights in (found.values() if len(found) > 1 else ())
        ]
        # A home that is none of this choice's costs what the first one does.
        size[place, :] = memory.own_bytes(number, choice, found[SPREAD], again=again)
        tick[place, :] = times[place]
        for at, home in enumerate([*found][1:], start=1):
            size[place, home] = memory.own_bytes(number, choice, found[home], again=again)
            tick[place, home] += round(moved[at] - moved[0])
    return size, tick


def _alike(one: HomeTable, other: HomeTable) -> Mask:
    """By choice whether two weights live on the same processors, block by block."""
    found: Mask = np.diff(one.blocks.starts) == np.diff(other.blocks.starts)
    mine, theirs = found[one.blocks.owner], found[other.blocks.owner]
    differ = (one.colors[mine] != other.colors[theirs]) | (one.blocks.boxes[mine, 0] != other.blocks.boxes[theirs, 0])
    found[one.blocks.owner[mine][differ]] = False
    return found


def _rows(home: HomeTable, kept: Mask) -> HomeTable:
    """Some blocks of a home."""
    return replace(home, blocks=home.blocks.select(kept), colors=home.colors[kept])
