"""Courses: in which order an elimination takes operators out, found once for tables whose entries change.

Which operator goes next depends on how many choices there are, on what tables know, and on which of them are the same;
not on their entries. So where one graph is eliminated for many weights, the engine goes through it once, with names for
tables, and each weight repeats what it did. A step that equals an earlier one, of whatever layer, is not repeated:

    step   takes out   of tables              leaves     repeated
    0      b           b: 1   a-b: 2  b-c: 3  a-c: 4     2 + 1 + 3, the least over b
    1      e           e: 1   d-e: 2  e-f: 3  d-f: 4     no: it has the table of step 0
    2      c           c: 1   a-c: 4  c-d: 5  a-d: 6     4 + 1 + 5, the least over c
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from maniple.strategies.elimination.variable_elimination import Step, Table, begin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.strategies.elimination.variable_elimination import Semiring, VariableElimination

__all__: list[str] = []

Values = TypeVar("Values")
Known = tuple[tuple[int, ...], int]
"""The operators that a table knows, ascending, and its name: equal tables have one."""
Taken = tuple[int, tuple[int, ...], Any]
"""An operator that was taken out, its neighbours, and what the semiring says of its choices."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Name:
    """Stands for the entries of a table, whatever they are."""

    number: int


class _ChoiceKeptError(Exception):
    """A table would be too large, so that an operator keeps a choice, which depends on entries."""


@final
class _Names:
    """A semiring of tables without entries."""

    def __init__(self, given: int) -> None:
        self.count = given

    def eliminate(
        self, operator: int, neighbours: tuple[int, ...], tables: Sequence[Table[_Name]]
    ) -> tuple[None, _Name]:
        """A new name."""
        del operator, neighbours, tables
        self.count += 1
        return None, _Name(self.count - 1)

    def favourite(self, operator: int, tables: Sequence[Table[_Name]]) -> int:
        """None is known."""
        raise _ChoiceKeptError

    def fix(self, costs: _Name, axis: int, choice: int) -> _Name:
        """None is known."""
        raise _ChoiceKeptError


@final
@dataclass(frozen=True, slots=True, eq=False)
class Course(Generic[Values]):
    """The course of an elimination.

    Args:
        end: the finished elimination of names.
        given: how many names there were to begin with, the first ones.
    """

    end: VariableElimination[Any]
    given: int

    @classmethod
    def of(cls, sizes: Sequence[int], tables: Sequence[Known], entries: int, *, squares: bool) -> Course[Values] | None:
        """The course of a graph; None where an operator would keep a choice for want of entries.

        Args:
            sizes: of every operator how many choices it has.
            tables: what is known, of names from 0 on; each operator is known by one at least.
            entries: the largest table to make.
            squares: whether chains of equal tables are squared where that takes less than to fold them.
        """
        given = 1 + max((name for _, name in tables), default=-1)
        names = [_Name(number) for number in range(given)]
        known = [Table(operators, names[name]) for operators, name in tables]
        state = begin(_Names(given), sizes, known, entries, {}, squares=squares)
        try:
            while not state.finished:
                state = state.advance()
        except _ChoiceKeptError:
            return None
        return cls(state, given)

    @property
    def squares(self) -> bool:
        """Whether a chain was squared, or might have been."""
        return self.end.equals is not None

    def outcome(self, semiring: Semiring[Values], given: Sequence[Values]) -> tuple[list[Taken], tuple[Values, ...]]:
        """Of each step the operator, its neighbours and the best of its choices; and what is closed in the end.

        Args:
            semiring: what sums and products are.
            given: what the first names stand for.
        """
        values, bests = self._worked_out(semiring, given)
        steps = [
            (step.operator, step.neighbours, bests[step.rest.costs.number])
            for step in self.end.steps
            if step.rest is not None
        ]
        return steps, tuple(values[name.number] for name in self.end.closed)

    def repeat(self, semiring: Semiring[Values], given: Sequence[Values]) -> VariableElimination[Values]:
        """The finished elimination of tables.

        Args:
            semiring: what sums and products are.
            given: what the first names stand for.
        """
        values, bests = self._worked_out(semiring, given)
        tables: dict[int, Table[Values]] = {}

        def table(named: Table[_Name]) -> Table[Values]:
            found = tables.get(id(named))
            if found is None:
                found = tables[id(named)] = Table(named.operators, values[named.costs.number], named.depth)
            return found

        steps = tuple(
            Step(
                step.operator,
                step.neighbours,
                bests[step.rest.costs.number],
                tuple(map(table, step.tables)),
                table(step.rest),
            )
            for step in self.end.steps
            if step.rest is not None
        )
        closed = tuple(values[name.number] for name in self.end.closed)
        return replace(self.end, semiring=semiring, steps=steps, closed=closed)

    def _worked_out(self, semiring: Semiring[Values], given: Sequence[Values]) -> tuple[list[Values], list[Any]]:
        """What every name stands for, and of each that a step has left the best choices."""
        values: list[Values] = list(given)
        bests: list[Any] = [None] * len(values)
        for step in self.end.steps:
            # Names are given in the order in which steps are worked out.
            if step.rest is not None and step.rest.costs.number == len(values):
                tables = [Table(one.operators, values[one.costs.number], one.depth) for one in step.tables]
                best, rest = semiring.eliminate(step.operator, step.neighbours, tables)
                bests.append(best)
                values.append(rest)
        return values, bests
