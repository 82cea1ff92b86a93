"""Evaluation: the predicted step time of choices, from a simulation that follows them."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, final

from maniple.process.error import RequestError
from maniple.strategies.search.memory_fit import allocated_beyond, beyond, largest, needed_bytes
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap.options import Options
from maniple.strategies.timing.ledger import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.plan.plan import Plan
    from maniple.strategies.interface.space import Choice, Space
    from maniple.strategies.soap.move import Choices

__all__: list[str] = []

Shortfall = tuple[int, int, "Choices"]
"""By how many bytes some choices do not fit into a memory, the memory's number, and the choices."""
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
        self._capacity = sum(memory.capacity_bytes for memory in simulation.machine.memories)
        self._choices, self._next = choices, choices
        self._inside = any(own.within for own in space.operators)
        self._under_way = False
        self.least: Shortfall | None = None
        """The least (bytes beyond a capacity, memory, choices) of the plans that did not fit, since it was last set."""

    @property
    def choices(self) -> Choices:
        """The choices that it stands at."""
        return self._choices

    @property
    def cost(self) -> float:
        """Seconds of a step as it is now, a change under way included; from ``UNFIT`` on where it does not fit."""
        more = beyond(self._simulation)
        most, memory = max((size, memory) for memory, size in enumerate(more))
        if most <= 0:
            return self._simulation.makespan_ns * NS
        if self.least is None or most < self.least[0]:
            self.least = most, memory, self._next
        return UNFIT * (1.0 + sum(size for size in more if size > 0) / self._capacity)

    def evaluate(self, changes: Sequence[tuple[int, Choice]], limit: float = inf) -> float:
        """See ``Evaluator.evaluate``."""
        after = list(self._choices)
        for operator, choice in changes:
            after[operator] = choice
        plans = {self.space.names[place]: self.space.operators[place].plan(choice) for place, choice in changes}
        try:
            found_ns = self._simulation.propose(plans, limit_ns=UNLIMITED if limit >= UNFIT else int(limit / NS) + 1)
        except RequestError:
            if not self._inside:
                raise
            self._under_way = False  # nothing was changed: stages would share processors, or wait for each other
            return inf
        self._next, self._under_way = tuple(after), True
        step_s = NS * found_ns
        return step_s if step_s > limit else self.cost

    def accept(self) -> None:
        """See ``Evaluator.accept``."""
        self._simulation.accept()
        self._choices, self._under_way = self._next, False

    def reject(self) -> None:
        """See ``Evaluator.reject``."""
        if self._under_way:
            self._simulation.reject()
        self._next, self._under_way = self._choices, False

    def stand_at(self, choices: Choices) -> None:
        """Go to the choices of the state that is stepped next; nothing to do unless it is not the last one."""
        if choices is not self._choices:
            if choices != self._choices:
                self.move_to(choices)
            self._choices = choices

    def move_to(self, choices: Choices) -> float:
        """Go to any choices, and give their cost; infinite, and nothing is changed, of what is no pipeline."""
        changes = [(place, choice) for place, choice in enumerate(choices) if choice != self._choices[place]]
        cost = self.evaluate(changes)
        if self._under_way:
            self.accept()
        return cost

    def plan(self) -> Plan:
        """The plan of the choices as they are now, with the homes of the weights that go with them."""
        return self._simulation.plan

    def largest(self, memory: int) -> tuple[str, int]:
        """The operator whose values, weights and their gradients take the most of a memory, and how many bytes."""
        return largest(self._simulation, memory)

    def is_allocated(self) -> bool:
        """Whether the plan as it is now fits by the runtime's own plan of the memories; searches go by an estimate."""
        most, memory = max((size, memory) for memory, size in enumerate(allocated_beyond(self._simulation)))
        if most > 0 and (self.least is None or most < self.least[0]):
            self.least = most, memory, self._choices
        return most <= 0

    @property
    def memory_bytes(self) -> int:
        """The most bytes that one memory holds."""
        return max(needed_bytes(self._simulation))
