"""The incumbent: the fastest choices that a search has found, and what finding them has taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from maniple.strategies.soap.evaluation import UNFIT
from maniple.strategies.strategy import Progress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maniple.strategies.soap.leg import SearchLeg
    from maniple.strategies.soap.move import Choices

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class Incumbent:
    """The fastest choices so far.

    Args:
        choices: of every operator.
        cost: their step time; from ``UNFIT`` on they do not fit in memory.
        proposals: how many changes were evaluated.
        accepted: how many of them were kept.
    """

    choices: Choices
    cost: float
    proposals: int = 0
    accepted: int = 0

    def against(self, choices: Choices, cost: float, proposals: int = 0, accepted: int = 0) -> Incumbent:
        """The incumbent after others were found, which replace it if they are faster.

        Args:
            choices: of every operator.
            cost: their step time.
            proposals: how many changes were evaluated to find them.
            accepted: how many of these were kept.
        """
        best, least = (choices, cost) if cost < self.cost else (self.choices, self.cost)
        return Incumbent(best, least, self.proposals + proposals, self.accepted + accepted)

    def after(self, legs: Iterable[SearchLeg]) -> Incumbent:
        """The incumbent after some legs, as far as they have come."""
        found = self
        for leg in legs:
            found = found.against(leg.best, leg.best_cost, leg.proposals, leg.accepted)
        return found

    @property
    def progress(self) -> Progress:
        """How far the search has come."""
        return Progress(self.proposals, self.accepted, None if self.cost >= UNFIT else self.cost)
