"""The descent: every choice of every operator is tried until none helps, so that the result is locally optimal.

With 150 choices a round is 8 sweeps, or as many as are left:

    round   sweeps over choices        shorter step      what follows
    1       0..15 16..31 .. 112..127   21 by the second  the next choices, on that plan; all are tried again
    2       128..143 144..9 .. 90..105 none              128 in a row did not help
    3       106..121 122..127          none              150 in a row: all of them, the end
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from maniple.strategies.soap.work_item import WIDTH, Merge, SearchItem, Sweep, merge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.strategies.interface.parallel_search import WorkItem
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

    def items(self) -> tuple[Sweep, ...]:
        """The sweeps of the next round."""
        left = min(WIDTH * LENGTH, self.count - self.quiet)
        return tuple(
            Sweep(self.choices, self.cost, (self.position + passed) % self.count, min(LENGTH, left - passed))
            for passed in range(0, left, LENGTH)
        )

    def join(self, items: Sequence[SearchItem]) -> tuple[Descent, tuple[SearchItem, ...]]:
        """The descent after a round, and the items of the next: none when it is finished."""
        tried = sum(item.most for item in items)
        following = (self.position + tried) % self.count
        if isinstance(items[0], Merge):
            after = Descent(items[0].best, items[0].best_cost, self.count, self.position)
        elif (found := merge(items, self.choices, self.cost)) is not None:
            after = Descent(found.best, found.best_cost, self.count, following)
            if not found.finished:
                return after, (found,)
        else:
            after = Descent(self.choices, self.cost, self.count, following, self.quiet + tried)
        return after, () if after.finished else after.items()

    def ends_with(self, items: Sequence[WorkItem]) -> bool:
        """Whether it is finished with a round, as far as the round's items have come."""
        ended = tuple(item for item in items if isinstance(item, SearchItem) and item.finished)
        return self.finished or (0 < len(ended) == len(items) and self.join(ended)[0].finished)
