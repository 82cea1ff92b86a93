"""The border of a stage: what its operators get from the stage beside it, by choice of theirs.

Two things cross. What a stage reads of an earlier one goes over in every micro-batch, and its gradient comes back; what
a weight that both use costs goes over once a step, for it lives cut over all who use it:

    stages of 2 processors, x of 4 samples read by cutting samples, a weight w that both use whole
    x          p0 [0:2] -> p2    p1 [2:4] -> p3      each micro-batch; the gradient the other way
    w          p0 [0:1/4] p1 [1/4:1/2] p2 ..         once: p2 and p3 get half of w from p0 and p1, and give half of its
                                                     gradient back

How a result is cut by who makes it is another stage's choice, which a cell does not know: it is taken to be cut evenly,
its first axes first. All else is priced as everywhere in the model: by `Flows`, which finds by the rules of validity
what goes over the links that the simulator takes, and nothing overlaps. So a period is what a stage computes and what
it gets, one after the other, as in 1f1b with as many micro-batches in flight as there are stages, where a stage waits
for what went to the end of the pipeline and came back. Each stage pays for what it reads, its sender for nothing. A
weight that more than two stages use, and a result that skips stages, cost what they would between this stage and the
one beside it.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.plan.weight_home import home_among
from maniple.operators.rules.bounds import blocks_of
from maniple.regions.columns.boxes import HIGH, LOW, WIDTH
from maniple.strategies.optcnn.home_table import SPREAD, HomeTable
from maniple.strategies.optcnn.use_table import BoxLists

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.regions.columns.boxes import Boxes
    from maniple.runtime.schedule.network import Rates
    from maniple.strategies.frontier.additive_model import Term, Terms

__all__: list[str] = []


@final
class StageBorder:
    """What a stage gets from the one beside it.

    Args:
        terms: the terms of operators on the stage's processors.
        own: the stage's processors.
        beside: those of the stage before it, or of the first one after it.
    """

    def __init__(self, terms: Terms, own: Sequence[int], beside: Sequence[int]) -> None:
        self._terms, self._beside = terms, tuple(beside)
        self._everyone = np.asarray([[*own, *beside]], dtype=np.int64)
        self._memories = np.unique(terms.cost.operators.memory_of[np.asarray(own)])
        self._known: dict[object, Term] = {}

    def added(self, own: Sequence[Term], first: int) -> tuple[Term, ...]:
        """The terms of a stage's operators with what they get from beside it.

        Args:
            own: their terms without, by choice and home; in order.
            first: the first of them.
        """
        found, last = list(own), first + len(own)
        for (reader, operand), part in self._read(first, last).items():
            found[reader - first] = _with(found[reader - first], self.received(reader, operand, part))
        for tensor, users in self._used(first, last).items():
            for number in users:
                found[number - first] = _with(found[number - first], self.shared(number, tensor, len(users)))
        return tuple(found)

    def received(self, reader: int, operand: int, parts: int) -> Term:
        """Bytes and nanoseconds of a step for what a reader has of another stage, by choice of it.

        Args:
            reader: what reads it.
            operand: its place among the reader's operands.
            parts: how many operators of the stage read it: each bears an equal part, for a memory has it once.
        """
        key = "received", reader, operand, parts
        if key not in self._known:
            ticks = self._crossing_ns(reader, operand) * self._terms.turns.rounds / parts
            size = self._terms.memory.received_bytes(reader, operand)
            self._known[key] = -(-size // parts), np.rint(ticks).astype(np.int64)
        return self._known[key]

    def shared(self, number: int, tensor: int, users: int) -> Term:
        """What a weight that another stage uses, too, costs more than if this operator's stage alone did, by choice.

        Args:
            number: an operator that uses it.
            tensor: the weight.
            users: how many operators of its stage do; each bears an equal part.
        """
        key = "shared", number, tensor, users
        if key not in self._known:
            prices, memory, operators = self._terms.prices, self._terms.memory, self._terms.cost.operators
            home, part = self._home(number, tensor), operators.sharing(tensor) / users
            ticks = prices.synchronised_ns(number, tensor, home) * part - prices.spread_ns(number, [tensor])
            alone = memory.weight_bytes(number, tensor, prices.homes(number, tensor)[SPREAD])
            more = (memory.weight_bytes(number, tensor, home) * part - alone)[:, self._memories].max(axis=1)
            self._known[key] = np.ceil(more).astype(np.int64), np.rint(ticks).astype(np.int64)
        return self._known[key]

    def _read(self, first: int, last: int) -> dict[tuple[int, int], int]:
        """What a stage reads of others, as (reader, operand), and how many of its operators read that result."""
        operators = self._terms.cost.operators
        ends: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for writer, reader in self._terms.cost.edges:
            if writer < first <= reader < last:
                for result, operand, _ in operators.ends(writer, reader):
                    ends.setdefault((writer, result), []).append((reader, operand))
        return {end: len(found) for found in ends.values() for end in found}

    def _used(self, first: int, last: int) -> dict[int, list[int]]:
        """The weights that others use, too, and who of a stage uses each."""
        operators, users = self._terms.cost.operators, dict[int, list[int]]()
        for number in range(first, last):
            for tensor in operators.weights(number):
                if operators.sharing(tensor) > 1:
                    users.setdefault(tensor, []).append(number)
        return {tensor: found for tensor, found in users.items() if len(found) < operators.sharing(tensor)}

    def _crossing_ns(self, reader: int, operand: int) -> Rates:
        """What goes to a reader in a micro-batch, and comes back."""
        tables, found = self._terms.cost.tables, np.zeros(self._terms.cost.tables.count(reader))
        layout = self._terms.cost.operators.layout_at(reader, ("value", "operand", operand))
        there = np.full(len(found), tables.flows.cut(layout[0], even_blocks(layout[0], self._beside)))
        for read in tables.cuts(reader, ("value", "operand", operand))[1]:
            found = found + tables.flows.between_ns(layout, there, read)
        given, _ = tables.cuts(reader, ("gradient", "operand", operand))
        return found + tables.flows.between_ns(layout, given, there)

    def _home(self, number: int, tensor: int) -> HomeTable:
        """Where a weight lives that all processors of both stages use, whatever this operator chooses."""
        operators = self._terms.cost.operators
        shape = operators.plan_free.tensors[tensor].shape
        whole = np.asarray([[(0, extent) for extent in shape]], dtype=np.int64).reshape(1, len(shape), 2)
        plan = home_among(shape, [(whole, self._everyone)], 0, operators.turn(tensor))
        home = operators.home_boxes(tensor, plan)
        blocks, count = home.blocks.copy(), self._terms.cost.tables.count(number)
        blocks[:, 0] = home.home.processors
        lists = BoxLists(np.arange(count + 1) * len(blocks), np.tile(blocks, (count, 1)))
        nowhere = np.zeros(count, dtype=bool)
        return HomeTable(nowhere, nowhere, nowhere, lists, np.tile(home.home.colors, count))


def _with(own: Term, more: Term) -> Term:
    """A term with more, by choice; where results may be computed again, an operator has each choice twice."""
    times = len(own[0]) // len(more[0])
    size, tick = (one + np.tile(other, times)[:, None] for one, other in zip(own, more, strict=True))
    return size, tick


def even_blocks(shape: Sequence[int], processors: Sequence[int]) -> Boxes:
    """The blocks of a region that is cut over processors, its first axes first, into as many as extents give.

    Args:
        shape: the region's.
        processors: who has a block each, in order; where there are fewer blocks, the first ones.
    """
    degrees, left = list[int](), len(processors)
    for extent in shape:
        degrees.append(gcd(extent, left))
        left //= degrees[-1]
    blocks = blocks_of(shape, degrees)
    found = np.zeros((len(blocks), WIDTH), dtype=np.int64)
    found[:, HIGH:] = 1
    found[:, 0] = processors[: len(blocks)]
    found[:, LOW : LOW + len(shape)] = blocks[:, :, 0]
    found[:, HIGH : HIGH + len(shape)] = blocks[:, :, 1]
    return found
