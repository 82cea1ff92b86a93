"""Search limits: what a search may take of seconds, proposals and processes.

Where tasks are timed here, a budget in seconds has them timed and plans tried within it, too:

    share of the budget    0              SURVEYED           SEARCHED                  1
    what is done           tasks timed    plans simulated    what comes near decided
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from maniple.strategies.interface.strategy import Progress

__all__: list[str] = []

RACERS = 3
"""Plans of which steps are run at most: each has its weights and instances beside the others'."""
SURVEYED, SEARCHED = 0.25, 0.45
"""Where tasks are timed, the shares of a budget after which no more are, and no more plans are looked for."""


@final
@dataclass(frozen=True, slots=True)
class Limits:
    """What a search may take.

    Args:
        began: when it did, by the clock.
        budget: seconds, if it has so many.
        proposals: how many it makes, if that is said.
        cores: how many processes search.
        timing: whether tasks are timed within the budget, and plans that come near.
        races: whether steps of these can be run, on the ranks of this program.
        compiles: whether torch compiles what these steps run, which is slow once and comes on top.
    """

    began: float
    budget: float | None
    proposals: int | None
    cores: int
    timing: bool = False
    races: bool = False
    compiles: bool = False

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    @property
    def left_s(self) -> float:
        """Seconds that it still has to look for plans."""
        return self.until(SEARCHED if self.timing else 1.0)

    def until(self, share: float) -> float:
        """Seconds until a share of the budget is over; none are left then."""
        return math.inf if self.budget is None else share * self.budget - self.elapsed_s

    def has_made_all(self, progress: Progress) -> bool:
        """Whether it has made as many proposals as it may."""
        return self.proposals is not None and progress.proposals >= self.proposals

    def tell(self) -> None:
        """Say what is measured when, on standard error; nothing where no tasks are timed within a budget."""
        from maniple.process.inventory import announce

        if self.budget is None or not self.timing:
            return
        surveyed, searched, all_s = (f"{share * self.budget:.3g}" for share in (SURVEYED, SEARCHED, 1.0))
        last = (
            f"steps of up to {RACERS} plans, data parallelism among them, are run in turn"
            if self.races
            else "the tasks of plans that come near are timed again, side by side"
        )
        on_top = ", and what torch compiles of them comes on top" if self.races and self.compiles else ""
        announce(
            f"maniple: searching for {all_s} s: tasks that were never timed on this computer are timed, those of data "
            f"parallelism first, until {surveyed} s are over (what is not reached is interpolated, and counted so); "
            f"plans are looked for until {searched} s; then {last}, until {all_s} s{on_top}"
        )


def cores_of(asked: int | None) -> int:
    """How many processes search."""
    from maniple.process import environment
    from maniple.process.inventory import available_cores

    if asked is not None:
        return asked
    return 1 if environment.is_launched() else available_cores()
