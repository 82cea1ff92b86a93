"""The descent: every choice of every operator is tried until none helps, so that the result is locally optimal.

round   sweeps over choices   shorter step      what follows
1       0..15  16..31         21 by the second  the next choices, on that plan; all are tried again
2       32..47 48..0          none              32 in a row did not help
3       1..16  17..32         none              64 in a row: all 48 of them, the end
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from maniple.strategies.soap.leg import WIDTH, Sweep, merge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.strategies.soap.leg import SearchLeg
    from maniple.strategies.soap.move import Choices

__all__: list[str] = []

LENGTH = 16
"""So many choices are a sweep."""


@final
@dataclass(frozen=True, slots=True)
class Descent:
    """A descent between two rounds.

    Args:
        choices: of every operator.
        cost: their step time.
        count: how many choices all operators have.
        position: the number of the next choice to try.
        quiet: how many in a row did not help.
    """

    choices: Choices
    cost: float
    count: int
    position: int = 0
    quiet: int = 0

    @property
    def finished(self) -> bool:
        """Whether no choice of any single operator is faster."""
        return self.quiet >= self.count

    def legs(self) -> tuple[Sweep, ...]:
        """The sweeps of the next round."""
        places = range(self.position, self.position + WIDTH * LENGTH, LENGTH)
        return tuple(Sweep(self.choices, self.cost, place % self.count, LENGTH) for place in places)

    def joined(self, legs: Sequence[SearchLeg]) -> tuple[Descent, tuple[SearchLeg, ...]]:
        """The descent after a round, and the legs of the next: none when it is finished."""
        following = (self.position + WIDTH * LENGTH) % self.count
        if len(legs) == 1:
            after = Descent(legs[0].best, legs[0].best_cost, self.count, self.position)
        elif (found := merge(legs, self.choices, self.cost)) is not None:
            after = Descent(found.best, found.best_cost, self.count, following)
            if not found.finished:
                return after, (found,)
        else:
            after = Descent(self.choices, self.cost, self.count, following, self.quiet + WIDTH * LENGTH)
        return after, () if after.finished else after.legs()
