"""The additive memory: what a step holds, as a sum over operators and over pairs of neighbours.

    m(S) = sum over operators of  own(o, c_o)  +  sum over edges of  copies(o, p, c_o, c_p)

Of each term it is the bytes in the memory that holds most. A memory has one instance of a region, as large as the hull
of all that is used of it there, and one more for each contribution to a sum. All are counted, also those that take
turns: what lives at once is a maximum over time, which is no sum, and only a simulation says it. The order of plans by
this sum, not its size, is what a search needs of it.

    own       the weights as they are used and where they live, their gradients and what an optimizer keeps at home; the
              inputs of the step; what a forward pass keeps for its backward pass; results as their maker has them, and
              their gradients as it reads them; contributions to sums
    copies    by how much a result's instance grows to hold what a neighbour reads of it

What takes turns because the plan says so is not counted: of a weight that is whole only in passes (see `homes`) what is
not at home, and of what is computed again (see `seam`) the results, their copies, and what is saved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.process.compilation.compiled import kernel
from maniple.regions.columns.boxes import AXES, HIGH, LOW
from maniple.regions.columns.validity import GRADIENT, REDUCE
from maniple.strategies.optcnn.use_table import FAR, hulls

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from maniple.regions.columns.boxes import Boxes
    from maniple.runtime.schedule.network import Column
    from maniple.strategies.frontier.own_price import Tabled
    from maniple.strategies.interface.space import Choice
    from maniple.strategies.optcnn.home_table import HomeTable
    from maniple.strategies.optcnn.operator_movement import End, Placed
    from maniple.strategies.optcnn.operator_tables import OperatorTables
    from maniple.strategies.optcnn.use_table import BoxLists, UseTable
    from maniple.strategies.simulation.home_boxes import HomeBoxes
    from maniple.strategies.simulation.region_cache import Use

    Sizes = npt.NDArray[np.float64]
    """[choice, memory]"""
    Hulls = npt.NDArray[np.int64]
    """[..., memory, (lows, highs)]; a hull without elements has highs of 0."""

__all__: list[str] = []

SUMS = frozenset({REDUCE, GRADIENT})
"""How what contributes to a sum uses a region."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class KnownBytes:
    """What is known of operators under all of their choices, however many parts of the samples are in flight.

    Args:
        hulls: of what they make and read, by kind and end.
        weights: of operators and weights, by home, which is kept: its identity tells what it is.
        held: of operators what they hold beside weights, once, and of each part in flight.
        copies: of pairs of operators what copies between them hold of one part, by choice of both.
    """

    hulls: dict[object, Hulls] = field(default_factory=dict)
    weights: dict[tuple[int, int, int], tuple[HomeTable | None, Sizes]] = field(default_factory=dict)
    held: dict[tuple[int, bool], tuple[Sizes, Sizes]] = field(default_factory=dict)
    copies: dict[tuple[int, int], npt.NDArray[np.int64]] = field(default_factory=dict)


@final
class AdditiveMemory:
    """The tables of the additive memory; what is alike shares.

    Args:
        tables: the operators under all of their choices.
        flying: of how many parts of the samples at once what forward leaves for backward is held.
        known: what is known of the same operators, however many parts are in flight.
    """

    def __init__(self, tables: OperatorTables, flying: int = 1, known: KnownBytes | None = None) -> None:
        self._tables, self._operators, self._flying = tables, tables.operators, flying
        self._plan_free, self._nodes = self._operators.plan_free, self._operators.plan_free.nodes
        self._memories = len(self._operators.machine.memories)
        self.known = known or KnownBytes()

    def own_bytes(
        self, number: int, choice: Choice, homes: Sequence[tuple[int, HomeBoxes | None]], *, again: bool = False
    ) -> int:
        """The bytes of an operator under a choice in the memory that holds most of them.

        Args:
            number: the operator.
            choice: its choice.
            homes: the weights that it uses, and where they live; None: nothing is counted but what is used of one.
            again: whether its results are computed again.
        """
        if not self._operators.needs(number):
            return 0
        placed, node = self._operators.place(number, choice), self._nodes[number]
        total = np.zeros(self._memories)
        for tensor, home in homes:
            total += self._own_weight_bytes(tensor, node.operands.index(tensor), placed, home)
        for layout, uses in (*placed.inside, *(() if again else (*placed.saved, *placed.values))):
            total += layout[1] * self._instances(uses)
        for place, result in enumerate(node.results):
            for kind in ("gradient",) if again else ("value", "gradient"):
                total += self._itemsize(result) * self._instances(placed.of((kind, "result", place)))
        for place, operand in enumerate(node.operands):
            if operand is None or self._plan_free.tensors[operand].lasting or node.operands.index(operand) != place:
                continue
            itemsize = self._itemsize(operand)
            given = placed.of(("gradient", "operand", place))
            total += itemsize * self._contributed(given)
            if self._plan_free.graph.producer(operand) is None:
                total += itemsize * _volumes(self._hulls(placed.of(_value(place)))) / self._operators.sharing(operand)
        return int(np.ceil(total.max(initial=0)))

    def all_bytes(self, number: int, homes: Tabled, *, again: bool = False) -> npt.NDArray[np.int64]:
        """The same of an operator under each of its choices.

        Args:
            number: the operator.
            homes: see `own_bytes`; where they live under each choice.
            again: whether its results are computed again.
        """
        count = self._tables.count(number)
        if not self._operators.needs(number):
            return np.zeros(count, dtype=np.int64)
        total = np.zeros((count, self._memories))
        for tensor, home in homes:
            total += self.weight_bytes(number, tensor, home)
        once, in_flight = self._held(number, again=again)
        total += once + self._flying * in_flight
        most: npt.NDArray[np.int64] = np.ceil(total.max(axis=1, initial=0)).astype(np.int64)
        return most

    def _held(self, number: int, *, again: bool) -> tuple[Sizes, Sizes]:
        """By choice and memory what an operator has beside weights: once, and of each part that is in flight."""
        if (number, again) not in self.known.held:
            count, forms, node = self._tables.count(number), self._tables.forms(number), self._nodes[number]
            once, flying = np.zeros((2, count, self._memories))
            for form in forms:
                for layout, uses in form.inside:
                    once += layout[1] * self._all_instances(uses, count)
                for layout, uses in () if again else (*form.saved, *form.values):
                    flying += layout[1] * self._all_instances(uses, count)
                for place, result in enumerate(node.results):
                    itemsize = self._itemsize(result)
                    once += itemsize * self._all_instances(form.of(("gradient", "result", place)), count)
                    if not again:
                        flying += itemsize * self._all_instances(form.of(("value", "result", place)), count)
            for place, operand in enumerate(node.operands):
                if operand is None or self._plan_free.tensors[operand].lasting or node.operands.index(operand) != place:
                    continue
                self._add_operand(once, flying, number, place, operand)
            self.known.held[number, again] = once, flying
        return self.known.held[number, again]

    def _add_operand(self, once: Sizes, flying: Sizes, number: int, place: int, operand: int) -> None:
        """What is contributed to the gradient of an operand, and it itself where it comes into the step, added."""
        forms, count = self._tables.forms(number), self._tables.count(number)
        itemsize = self._itemsize(operand)
        for form in forms:
            once += itemsize * self._all_contributed(form.of(("gradient", "operand", place)), count)
        if self._plan_free.graph.producer(operand) is None:
            used = [use.used for form in forms for use in form.of(_value(place))]
            flying += itemsize * _volumes(self._hulls_of_all(used, count)) / self._operators.sharing(operand)

    def edge_bytes(self, writer: int, reader: int) -> npt.NDArray[np.int64]:
        """The bytes of the copies between two operators, for each choice of the one and of the other.

        Args:
            writer: what makes something.
            reader: what reads it.
        """
        if (writer, reader) not in self.known.copies:
            found = np.zeros((self._tables.count(writer), self._tables.count(reader)), dtype=np.int64)
            for result, operand, _ in self._operators.ends(writer, reader):
                tensor = self._nodes[writer].results[result]
                made = self._hulls_at(writer, ("value", "result", result))
                read = self._hulls_at(reader, ("value", "operand", operand))
                found += self._itemsize(tensor) * _growths(made, read)
            self.known.copies[writer, reader] = found
        return self._flying * self.known.copies[writer, reader]

    def received_bytes(self, reader: int, operand: int) -> npt.NDArray[np.int64]:
        """The bytes of an operand that another stage has made, as its reader has it, by choice.

        Args:
            reader: what reads it.
            operand: its place among the reader's operands.
        """
        read = _volumes(self._hulls_at(reader, ("value", "operand", operand))).max(axis=1)
        itemsize = self._tables.operators.layout_at(reader, ("value", "operand", operand))[1]
        found: npt.NDArray[np.int64] = self._flying * itemsize * read.astype(np.int64)
        return found

    def _own_weight_bytes(
        self, tensor: int, place: int, placed: Placed, home: HomeBoxes | None
    ) -> npt.NDArray[np.float64]:
        """By memory this user's equal part of a weight: its value, its gradient, and what an optimizer keeps."""
        itemsize, sharing = self._itemsize(tensor), self._operators.sharing(tensor)
        held = [] if home is None else [(home.held[:, 0], home.held)]
        lives = _volumes(self._hull(held))
        used = [(self._operators.memory_of[use.processors], use.shape.boxes) for use in placed.of(_value(place))]
        given = placed.of(("gradient", "operand", place))
        plan = None if home is None else home.home.plan
        total = lives if plan is not None and plan.copy == "pass" else _volumes(self._hull([*held, *used]))
        if given:
            sums = lives if plan is not None and plan.sums == "home" else self._contributed(given)
            total = total + sums + self._operators.states * lives
        found: npt.NDArray[np.float64] = itemsize * total / sharing
        return found

    def weight_bytes(self, number: int, tensor: int, home: HomeTable | None) -> npt.NDArray[np.float64]:
        """By choice and memory this user's equal part of a weight.

        Args:
            number: the operator that uses it.
            tensor: the weight.
            home: where it lives under each choice; None: nothing is counted but what is used.
        """
        key = number, tensor, id(home)
        if key not in self.known.weights:
            self.known.weights[key] = home, self._weight_bytes(number, tensor, home)
        return self.known.weights[key][1]

    def _weight_bytes(self, number: int, tensor: int, home: HomeTable | None) -> npt.NDArray[np.float64]:
        forms, count = self._tables.forms(number), self._tables.count(number)
        place, itemsize = self._nodes[number].operands.index(tensor), self._itemsize(tensor)
        held = [] if home is None else [home.blocks]
        lives = _volumes(self._hulls_of_all(held, count))
        used = [use.used for form in forms for use in form.of(_value(place))]
        total = _volumes(self._hulls_of_all([*held, *used], count))
        if home is not None:
            total = np.where(home.passing[:, None], lives, total)
        for form in forms:
            given = form.of(("gradient", "operand", place))
            if given:
                sums = self._all_contributed(given, count)
                if home is not None:
                    sums = np.where(home.summed[:, None], lives, sums)
                more = total + sums + self._operators.states * lives
                total = np.where(form.there[:, None], more, total)
        found: npt.NDArray[np.float64] = itemsize * total / self._operators.sharing(tensor)
        return found

    def _all_instances(self, uses: Sequence[UseTable], count: int) -> npt.NDArray[np.float64]:
        """By choice and memory the elements of a region's instance and of the contributions to it."""
        alone = np.all([use.sums for use in uses], axis=0)  # where all contribute
        main = [use.used.select(~use.sums[use.used.owner] | alone[use.used.owner]) for use in uses]
        return _volumes(self._hulls_of_all(main, count)) + self._all_contributed(uses, count)

    def _all_contributed(self, uses: Sequence[UseTable], count: int) -> npt.NDArray[np.float64]:
        """By choice and memory the elements of what is contributed to a sum."""
        found = np.zeros((count, self._memories))
        for use in uses:
            if use.sums.any():
                found += np.where(use.sums[:, None], _volumes(self._hulls_of_all([use.used], count)), 0.0)
        return found

    def _hulls_of_all(self, used: Sequence[BoxLists], count: int) -> Hulls:
        return hulls(used, count, self._memories, self._operators.memory_of)

    def _instances(self, uses: Sequence[Use]) -> npt.NDArray[np.float64]:
        """By memory the elements of a region's instance and of the contributions to it."""
        main = [use for use in uses if use.shape.access not in SUMS]
        return _volumes(self._hulls(main or uses)) + self._contributed(uses)

    def _contributed(self, uses: Sequence[Use]) -> npt.NDArray[np.float64]:
        """By memory the elements of what is contributed to a sum."""
        found = np.zeros(self._memories)
        for use in uses:
            if use.shape.access in SUMS:
                found += _volumes(self._hulls([use]))
        return found

    def _itemsize(self, tensor: int) -> int:
        return self._plan_free.layout(("value", -1, tensor), {})[1]

    def _hulls_at(self, number: int, end: End) -> Hulls:
        """The hulls of what an operator makes of a result, or reads of an operand, [choice, memory, ...]."""
        key = self._plan_free.kind[number], end
        if key not in self.known.hulls:
            uses = [use for form in self._tables.forms(number) for use in form.of(end)]
            kept = [use.used for use in uses if end[1] != "result" or not use.reads]
            self.known.hulls[key] = self._hulls_of_all(kept, self._tables.count(number))
        return self.known.hulls[key]

    def _hulls(self, uses: Sequence[Use]) -> Hulls:
        """By memory the hull of some uses."""
        return self._hull([(self._operators.memory_of[use.processors], use.shape.boxes) for use in uses])

    def _hull(self, tables: Sequence[tuple[Column, Boxes]]) -> Hulls:
        """By memory the hull of boxes, given with the memory of each."""
        hulls = np.zeros((self._memories, 2 * AXES), dtype=np.int64)
        hulls[:, :AXES] = FAR
        for memories, boxes in tables:
            np.minimum.at(hulls[:, :AXES], memories, boxes[:, LOW:HIGH])
            np.maximum.at(hulls[:, AXES:], memories, boxes[:, HIGH:])
        return hulls


def _value(place: int) -> End:
    return "value", "operand", place


def _volumes(hulls: Hulls) -> npt.NDArray[np.float64]:
    """The elements of each hull."""
    extents = hulls[..., AXES:] - hulls[..., :AXES]
    found: npt.NDArray[np.float64] = np.where(hulls[..., AXES] > 0, np.prod(extents.astype(np.float64), axis=-1), 0.0)
    return found


@kernel
def _growths(made: Hulls, read: Hulls) -> npt.NDArray[np.int64]:
    """By how many elements the largest instance of a region grows, for each choice of its maker and of its reader.

    Args:
        made: [choice, memory, (lows, highs)].
        read: the same of what is read.
    """
    found = np.zeros((made.shape[0], read.shape[0]), dtype=np.int64)
    axes = made.shape[2] // 2
    for one in range(made.shape[0]):
        for other in range(read.shape[0]):
            for memory in range(made.shape[1]):
                if read[other, memory, axes] == 0:
                    continue
                before, after = 1, 1
                for axis in range(axes):
                    low = min(made[one, memory, axis], read[other, memory, axis])
                    high = max(made[one, memory, axes + axis], read[other, memory, axes + axis])
                    after *= high - low
                    before *= made[one, memory, axes + axis] - made[one, memory, axis]
                if made[one, memory, axes] == 0:
                    before = 0
                found[one, other] = max(found[one, other], after - before)
    return found
