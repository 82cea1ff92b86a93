"""The incumbent: the fastest choices that a search has found, and what finding them has taken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from maniple.strategies.interface.strategy import Progress
from maniple.strategies.soap.evaluation import UNFIT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maniple.strategies.soap.evaluation import Shortfall
    from maniple.strategies.soap.move import Choices
    from maniple.strategies.soap.work_item import SearchItem

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class Incumbent:
    """The fastest choices so far.

    Args:
        choices: of every operator.
        cost: their step time; from ``UNFIT`` on they do not fit in memory.
        proposals: how many plans were evaluated, the seeds included.
        accepted: how many changes were kept.
        least: the least by which a plan did not fit.
        slower: (step time, choices) of seeds and of former incumbents, should the runtime have no room for the fastest.
    """

    choices: Choices
    cost: float
    proposals: int = 0
    accepted: int = 0
    least: Shortfall | None = None
    slower: tuple[tuple[float, Choices], ...] = ()

    @property
    def candidates(self) -> tuple[tuple[float, Choices], ...]:
        """(step time, choices) of all that the search may end with, the fastest first."""
        return (self.cost, self.choices), *sorted(self.slower, key=lambda other: other[0])

    def against(
        self, choices: Choices, cost: float, proposals: int = 0, accepted: int = 0, least: Shortfall | None = None
    ) -> Incumbent:
        """The incumbent after others were found, which replace it if they are faster.

        Args:
            choices: of every operator.
            cost: their step time.
            proposals: how many changes were evaluated to find them.
            accepted: how many of these were kept.
            least: the least by which one of these did not fit.
        """
        if least is None or (self.least is not None and self.least[0] <= least[0]):
            least = self.least
        after = replace(self, proposals=self.proposals + proposals, accepted=self.accepted + accepted, least=least)
        if cost >= self.cost:
            return after
        return replace(after, choices=choices, cost=cost, slower=(*self.slower, (self.cost, self.choices)))

    def add_seed(self, choices: Choices, cost: float, least: Shortfall | None) -> Incumbent:
        """The incumbent after a seed was simulated, which stays a candidate though it be slower."""
        after = self.against(choices, cost, 1, 0, least)
        return after if cost < self.cost else replace(after, slower=(*after.slower, (cost, choices)))

    def after(self, items: Iterable[SearchItem]) -> Incumbent:
        """The incumbent after some items, as far as they have come."""
        found = self
        for item in items:
            found = found.against(item.best, item.best_cost, item.proposals, item.accepted, item.least)
        return found

    @property
    def progress(self) -> Progress:
        """How far the search has come."""
        return Progress(self.proposals, self.accepted, None if self.cost >= UNFIT else self.cost)
