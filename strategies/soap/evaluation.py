"""Evaluation: the predicted step time of choices, from a simulation that follows them."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, final

from maniple.strategies.memory_fit import largest
from maniple.strategies.simulation.ledger import UNLIMITED
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap.options import Options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.plan import Plan
    from maniple.strategies.soap.move import Choices
    from maniple.strategies.space import Choice, Space

__all__: list[str] = []

NS = 1e-9
UNFIT = 1e9
"""What a plan that does not fit in memory costs at least; the more is beyond the capacities, the more it costs."""


@final
class Evaluation:
    """A simulation as an ``Evaluator``: it is at some choices, and tries others.

    Args:
        simulation: at a plan whose configurations are ``choices``.
        space: the space of the same graph.
        choices: of every operator.
    """

    def __init__(self, simulation: Simulation, space: Space, choices: Choices) -> None:
        self._simulation, self.space = simulation, space
        self.options = Options(space)
        self._capacity = [memory.capacity_bytes for memory in simulation.machine.memories]
        self._choices, self._next = choices, choices
        self.least: tuple[int, int, Choices] | None = None
        """The least (bytes beyond the capacity, memory) of all plans seen that did not fit, and its choices."""

    @property
    def choices(self) -> Choices:
        """The choices that it stands at."""
        return self._choices

    @property
    def cost(self) -> float:
        """Seconds of a step as it is now, a change under way included; from ``UNFIT`` on where it does not fit."""
        used = self._simulation.memory_bytes
        beyond = [int(used[memory]) - held for memory, held in enumerate(self._capacity)]
        excess, memory = max((excess, memory) for memory, excess in enumerate(beyond))
        if excess > 0:
            if self.least is None or excess < self.least[0]:
                self.least = excess, memory, self._next
            return UNFIT * (1.0 + sum(excess for excess in beyond if excess > 0) / sum(self._capacity))
        return self._simulation.makespan_ns * NS

    def evaluate(self, changes: Sequence[tuple[int, Choice]], limit: float = inf) -> float:
        """See ``Evaluator.evaluate``."""
        after = list(self._choices)
        for operator, choice in changes:
            after[operator] = choice
        self._next = tuple(after)
        self._simulation.propose(
            {self.space.names[place]: self.space.operators[place].plan(choice) for place, choice in changes},
            limit_ns=UNLIMITED if limit >= UNFIT else int(limit / NS) + 1,
        )
        return self.cost

    def accept(self) -> None:
        """See ``Evaluator.accept``."""
        self._simulation.accept()
        self._choices = self._next

    def reject(self) -> None:
        """See ``Evaluator.reject``."""
        self._simulation.reject()
        self._next = self._choices

    def stand_at(self, choices: Choices) -> None:
        """Go to the choices of the state that is stepped next; nothing to do unless it is not the last one."""
        if choices is not self._choices:
            if choices != self._choices:
                self.move_to(choices)
            self._choices = choices

    def move_to(self, choices: Choices) -> float:
        """Go to any choices, and give their cost."""
        changes = [(place, choice) for place, choice in enumerate(choices) if choice != self._choices[place]]
        cost = self.evaluate(changes)
        self.accept()
        return cost

    def plan(self) -> Plan:
        """The plan of the choices as they are now, with the homes of the weights that go with them."""
        return self._simulation.plan

    def largest(self, memory: int) -> tuple[str, int]:
        """The operator whose values, weights and their gradients take the most of a memory, and how many bytes."""
        return largest(self._simulation, memory)

    @property
    def memory_bytes(self) -> int:
        """The most bytes that one memory holds."""
        return int(self._simulation.memory_bytes.max())
