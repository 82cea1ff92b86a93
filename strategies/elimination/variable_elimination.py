r"""Variable elimination: the sum, over all choices for all operators, of the product of tables, operator by operator.

What a sum and a product are, a semiring says: of costs the least and the sum (`min_plus`), of frontiers the union and
what is needed together (`strategies/frontier`). Taking an operator out replaces the tables that know it by one over its
neighbours (R. Dechter, Bucket elimination: A unifying framework for reasoning, Artificial Intelligence 113, 1999):

    neighbours   what the field calls it                                    the table that is left
    0 or 1       branch elimination: an end of the graph is folded in       over one operator
    2            node elimination (Z. Jia et al., ICML 2018, section 5.2)   over two, a new edge
    any          a step of dynamic programming over a cut of the graph      over the whole cut

    a - b - c        take b out       a - c      table[a, c] = sum over b of  b x edge(a, b) x edge(b, c)
     \     /                          (tables over a and c are multiplied when one of the two is taken out:
      -----                            edge elimination)

The operator whose table is smallest goes first, of equals one whose tables are as they were given. Where even that
table is larger than allowed, `finish` *conditions* on the operator with most neighbours: one elimination for each of
its choices, whose results are summed, which is exact, too. Only where that would take too many eliminations does an
operator keep the choice that suits its neighbours best one by one, and the result names it as inexact.

Equal layers: tables that are the same object are taken to be equal, so a step whose tables were met before is not
worked out again. The inside of 96 equal layers is taken out once. A chain of equal tables is left:

    folded      from its ends, an operator of K choices after another                K x K for each layer
    squared     every second operator is taken out, and again, and again: equal      K x K x K for each doubling
                steps, of which each round has one

Where `begin` is told to square, a step between two operators counts with its share of all equal ones that are left,
so a chain is squared as long as it has more than K operators, and folded then, which of all such ways takes least.
Going back through a squared chain would take K x K x K for each operator: min-marginals are of folded ones.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__: list[str] = []

Values = TypeVar("Values")
Met = dict[object, tuple[object, ...]]
"""Steps that were worked out, by what determines them; it only ever grows, and changes no result."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Table(Generic[Values]):
    """Values over the choices of some operators; two tables are one only if they are the same.

    Args:
        operators: their numbers, ascending.
        costs: an axis for each of them.
        depth: how many steps it has come from, one after another.
    """

    operators: tuple[int, ...]
    costs: Values
    depth: int = 0


@final
@dataclass(frozen=True, slots=True, eq=False)
class Step(Generic[Values]):
    """An operator that was taken out.

    Args:
        operator: its number.
        neighbours: the operators of the table that is left, ascending.
        best: what the semiring says of its choices, for each combination of its neighbours'.
        tables: those that knew it.
        rest: what is left of them; None where it kept a choice.
    """

    operator: int
    neighbours: tuple[int, ...]
    best: Any
    tables: tuple[Table[Values], ...] = ()
    rest: Table[Values] | None = None


class Semiring(Protocol[Values]):
    """What sums and products of tables are."""

    def eliminate(
        self, operator: int, neighbours: tuple[int, ...], tables: Sequence[Table[Values]]
    ) -> tuple[Any, Values]:
        """The product of some tables, summed over the choices of one operator.

        Args:
            operator: its number.
            neighbours: the others that the tables know, ascending.
            tables: all of them know the operator.

        Returns:
            What is to be known of its choices, and the table over its neighbours.
        """
        ...

    def favourite(self, operator: int, tables: Sequence[Table[Values]]) -> int:
        """The choice of an operator that is best if all others choose what suits it, table by table."""
        ...

    def fix(self, costs: Values, axis: int, choice: int) -> Values:
        """A table without one of its axes."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class VariableElimination(Generic[Values]):
    """The operators that are left, and the tables that know them: a value, from which taking one out makes another.

    Args:
        semiring: what sums and products are.
        sizes: of every operator how many choices it has.
        entries: the largest table to make.
        known: of each operator the tables that know it, as they were made; none of one that is out.
        widths: of each operator that is left the entries of the table that is multiplied when it is taken out.
        closed: the tables that know no operator.
        steps: what was taken out.
        inexact: the operators that kept a choice for want of entries.
        met: steps that were worked out before; None: each is worked out.
        depths: of each operator that is left how many steps its tables have come from at most, one after another.
        equals: of each operator that is left the number of its step, equal ones having one; None: chains are folded.
        numbers: of steps, by what determines them; it only ever grows.
    """

    semiring: Semiring[Values]
    sizes: tuple[int, ...]
    entries: int
    known: tuple[tuple[Table[Values], ...], ...]
    widths: Mapping[int, int]
    closed: tuple[Values, ...]
    steps: tuple[Step[Values], ...]
    inexact: tuple[int, ...]
    met: Met | None
    depths: Mapping[int, int]
    equals: Mapping[int, int] | None
    numbers: dict[object, int]

    @property
    def finished(self) -> bool:
        """Whether no operator is left."""
        return not self.widths

    @property
    def exact(self) -> bool:
        """Whether no choice was kept for want of entries."""
        return not self.inexact

    @property
    def fits(self) -> bool:
        """Whether the next table is no larger than allowed."""
        return self.finished or min(self.widths.values()) <= self.entries

    def advance(self) -> Self:
        """The elimination with one operator less, the one whose step is least; itself where none is left."""
        if self.finished:
            return self
        operator = self._narrowest() if self.equals is None else self._first_of(self.equals)
        mine = self.known[operator]
        if self.widths[operator] > self.entries:
            choice = self.semiring.favourite(operator, mine)
            kept = self.inexact if self.sizes[operator] == 1 else (*self.inexact, operator)
            return replace(self.fixed(operator, choice), inexact=kept)
        near = _near(operator, mine)
        best, rest = self._eliminate(operator, near, mine)
        table = Table(near, rest, self._depth(operator) + 1)
        return self._without(Step(operator, near, best, mine, table), [table])

    def fixed(self, operator: int, choice: int) -> Self:
        """The elimination in which an operator has one of its choices."""
        rests = []
        for table in self.known[operator]:
            axis = table.operators.index(operator)
            others = table.operators[:axis] + table.operators[axis + 1 :]
            rests.append(Table(others, self.semiring.fix(table.costs, axis, choice), table.depth))
        return self._without(Step(operator, (), np.asarray(choice)), rests)

    def conditioned(self) -> tuple[Self, ...]:
        """One elimination for each choice of the operator with most neighbours; their results are to be summed."""
        operator = max(self.widths, key=lambda number: (len(_near(number, self.known[number])), -number))
        return tuple(self.fixed(operator, choice) for choice in range(self.sizes[operator]))

    def _depth(self, operator: int) -> int:
        return _depth(self.known[operator])

    def _narrowest(self) -> int:
        """The operator whose table is smallest, of equals one whose tables are as they were given, and the first."""
        narrowest = min(self.widths.values())
        equals = [number for number, found in self.widths.items() if found == narrowest]
        return min(zip(map(self.depths.__getitem__, equals), equals, strict=True))[1]

    def _first_of(self, equals: Mapping[int, int]) -> int:
        """The operator whose step is least, that of equal ones counted once: one that was met costs nothing more."""
        met = self.met or {}
        first = {step: number for number, step in reversed(list(equals.items()))}
        counts = Counter(equals.values())

        def cost(step: int) -> tuple[float, int, int]:
            number = first[step]
            near, tables = _near(number, self.known[number]), self.known[number]
            # A step that leaves a table over more than two operators makes later ones larger: it waits for its turn.
            share = self.widths[number] if len(near) > 2 else self.widths[number] / counts[step]
            return 0.0 if step_key(near, tables) in met else share, self.depths[number], number

        return min(map(cost, first))[2]

    def _eliminate(self, operator: int, near: tuple[int, ...], tables: tuple[Table[Values], ...]) -> tuple[Any, Values]:
        """What the semiring makes of a step, or made of an equal one."""
        if self.met is None:
            return self.semiring.eliminate(operator, near, tables)
        key = step_key(near, tables)
        if key not in self.met:
            # The tables stay, so that none of another step takes their identity.
            self.met[key] = (*self.semiring.eliminate(operator, near, tables), tables)
        best, rest, _ = self.met[key]
        return best, rest  # type: ignore[return-value]  # as it was put there

    def _without(self, step: Step[Values], rests: Sequence[Table[Values]]) -> Self:
        """The elimination after a step, with what is left of the tables that knew its operator."""
        gone = self.known[step.operator]
        known = list(self.known)
        known[step.operator] = ()
        near = _near(step.operator, gone)
        for other in near:
            kept = tuple(table for table in known[other] if table not in gone)
            known[other] = (*kept, *(table for table in rests if other in table.operators))
        widths = {**self.widths, **{other: width(known[other], self.sizes) for other in near}}
        depths = {**self.depths, **{other: _depth(known[other]) for other in near}}
        del widths[step.operator], depths[step.operator]
        equals = None
        if self.equals is not None:
            equals = {**self.equals, **{other: _number(self.numbers, other, known[other]) for other in near}}
            del equals[step.operator]
        closed = (*self.closed, *(table.costs for table in rests if not table.operators))
        found, steps = tuple(known), (*self.steps, step)
        return replace(self, known=found, widths=widths, closed=closed, steps=steps, depths=depths, equals=equals)


AnyElimination = TypeVar("AnyElimination", bound=VariableElimination[Any])


def tables_by_operator(tables: Sequence[Table[Values]], operators: int) -> tuple[tuple[Table[Values], ...], ...]:
    """Of each operator the tables that know it, in order."""
    known: list[list[Table[Values]]] = [[] for _ in range(operators)]
    for table in tables:
        for operator in table.operators:
            known[operator].append(table)
    return tuple(map(tuple, known))


def width(tables: Sequence[Table[Values]], sizes: Sequence[int]) -> int:
    """The entries of the table over all operators that some tables know.

    An operator of one choice counts for two: it adds no entry, but an axis, of which arrays have few.
    """
    return prod(max(2, sizes[other]) for other in {other for table in tables for other in table.operators})


def begin(
    semiring: Semiring[Values],
    sizes: Sequence[int],
    tables: Sequence[Table[Values]],
    entries: int,
    met: Met | None = None,
    *,
    squares: bool = False,
) -> VariableElimination[Values]:
    """The elimination in which every operator is left.

    Args:
        semiring: what sums and products are.
        sizes: of every operator how many choices it has.
        tables: each operator is known by one at least.
        entries: the largest table to make.
        met: see ``VariableElimination``.
        squares: whether chains of equal tables are squared where that takes less than to fold them; `met` is given.
    """
    known = tables_by_operator(tables, len(sizes))
    widths = {number: width(found, sizes) for number, found in enumerate(known)}
    depths = {number: _depth(found) for number, found in enumerate(known)}
    closed = tuple(table.costs for table in tables if not table.operators)
    made = VariableElimination(semiring, tuple(sizes), entries, known, widths, closed, (), (), met, depths, None, {})
    if not squares:
        return made
    equals = {number: _number(made.numbers, number, found) for number, found in enumerate(known)}
    counts = Counter(equals.values())
    # Where no step has more equal ones than its operator has choices, no chain is long enough, and none is looked for.
    long = any(counts[step] > sizes[number] > 1 for number, step in equals.items())
    return replace(made, equals=equals) if long else made


def finish(elimination: AnyElimination, eliminations: int) -> list[AnyElimination]:
    """Take all operators out; what the eliminations given have closed is to be summed.

    Args:
        elimination: where to begin.
        eliminations: how many there may be in the end; where conditioning would make more, an operator keeps a choice.
    """
    while not elimination.finished:
        if elimination.fits:
            elimination = elimination.advance()
            continue
        branches = elimination.conditioned()
        if len(branches) <= eliminations:
            share = eliminations // len(branches)
            return [end for branch in branches for end in finish(branch, share)]
        elimination = elimination.advance()
    return [elimination]


def step_key(near: tuple[int, ...], tables: Sequence[Table[Any]]) -> object:
    """What determines a step: which tables it multiplies, and which of their operators are the same.

    Args:
        near: the operators that the tables know beside the one that is taken out.
        tables: those that know it; they stay as long as what is said of them.
    """
    place = {number: at for at, number in enumerate(near)}
    return tuple((id(table.costs), *(place.get(number, -1) for number in table.operators)) for table in tables)


def _number(numbers: dict[object, int], operator: int, tables: Sequence[Table[Any]]) -> int:
    """The number of an operator's step."""
    return numbers.setdefault(step_key(_near(operator, tables), tables), len(numbers))


def _depth(tables: Sequence[Table[Any]]) -> int:
    return max((table.depth for table in tables), default=0)


def _near(operator: int, tables: Sequence[Table[Values]]) -> tuple[int, ...]:
    """The operators that some tables know beside one, ascending."""
    return tuple(sorted({other for table in tables for other in table.operators} - {operator}))
