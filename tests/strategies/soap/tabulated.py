"""A cost of choices that is looked up."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nextafter

from maniple.strategies.interface.space import Choice
from maniple.strategies.soap.move import Choices


class Tabulated:
    """An evaluator over a table; refuses a second evaluation before the first was accepted or rejected."""

    def __init__(self, table: dict[Choices, float], choices: Choices) -> None:
        self.table, self.choices = table, choices
        self.next: Choices | None = None
        self.evaluations = 0

    def evaluate(self, changes: Sequence[tuple[int, Choice]], limit: float = inf) -> float:
        assert self.next is None
        self.evaluations += 1
        changed = dict(changes)
        self.next = tuple(changed.get(operator, choice) for operator, choice in enumerate(self.choices))
        return min(self.table[self.next], nextafter(limit, inf))

    def accept(self) -> None:
        assert self.next is not None
        self.choices, self.next = self.next, None

    def reject(self) -> None:
        assert self.next is not None
        self.next = None
