"""The border of a stage: what its operators get from the stage beside it, by choice of theirs.

What a stage reads of an earlier one goes over in every micro-batch, and its gradient comes back. What crosses once a
step, because stages use a weight together, is in `stage_weight`.

    stages of 2 processors, x of 4 samples read by cutting samples
    x          p0 [0:2] -> p2    p1 [2:4] -> p3      each micro-batch; the gradient the other way

How a result is cut by who makes it is another stage's choice, which a cell does not know: it is taken to be cut evenly,
its first axes first. All else is priced as everywhere in the model: by `Flows`, which finds by the rules of validity
what goes over the links that the simulator takes, and nothing overlaps. So a period is what a stage computes and what
it gets, one after the other, as in 1f1b with as many micro-batches in flight as there are stages, where a stage waits
for what went to the end of the pipeline and came back. Each stage pays for what it reads, its sender for nothing. A
result that skips stages costs what it would between this stage and the one beside it.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.operators.rules.bounds import blocks_of
from maniple.regions.columns.boxes import HIGH, LOW, WIDTH
from maniple.strategies.frontier.stage_weight import with_more

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
        beside: those of the stage before it, or of the first one after it.
    """

    def __init__(self, terms: Terms, beside: Sequence[int]) -> None:
        self._terms, self._beside = terms, tuple(beside)
        self._known: dict[object, Term] = {}

    def added(self, own: Sequence[Term], first: int) -> tuple[Term, ...]:
        """The terms of a stage's operators with what they get from beside it.

        Args:
            own: their terms without, by choice and home; in order.
            first: the first of them.
        """
        found, last = list(own), first + len(own)
        for (reader, operand), part in self._read(first, last).items():
            found[reader - first] = with_more(found[reader - first], self.received(reader, operand, part))
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

    def _read(self, first: int, last: int) -> dict[tuple[int, int], int]:
        """What a stage reads of others, as (reader, operand), and how many of its operators read that result."""
        operators = self._terms.cost.operators
        ends: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for writer, reader in self._terms.cost.edges:
            if writer < first <= reader < last:
                for result, operand, _ in operators.ends(writer, reader):
                    ends.setdefault((writer, result), []).append((reader, operand))
        return {end: len(found) for found in ends.values() for end in found}

    def _crossing_ns(self, reader: int, operand: int) -> Rates:
        """What goes to a reader in a micro-batch, and comes back."""
        tables, found = self._terms.cost.tables, np.zeros(self._terms.cost.tables.count(reader))
        layout = self._terms.cost.operators.layout_at(reader, ("value", "operand", operand))
        there = np.full(len(found), tables.flows.cut(layout[0], even_blocks(layout[0], self._beside)))
        for read in tables.cuts(reader, ("value", "operand", operand))[1]:
            found = found + tables.flows.between_ns(layout, there, read)
        given, _ = tables.cuts(reader, ("gradient", "operand", operand))
        return found + tables.flows.between_ns(layout, given, there)


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
