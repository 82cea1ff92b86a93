"""Search limits: what a search may take of seconds, proposals and processes."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from maniple.strategies.interface.strategy import Progress

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class Limits:
    """What a search may take.

    Args:
        began: when it did, by the clock.
        budget: seconds, if it has so many.
        proposals: how many it makes, if that is said.
        cores: how many processes search.
    """

    began: float
    budget: float | None
    proposals: int | None
    cores: int

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    @property
    def left_s(self) -> float:
        """Seconds that it still has."""
        return math.inf if self.budget is None else self.budget - self.elapsed_s

    def has_made_all(self, progress: Progress) -> bool:
        """Whether it has made as many proposals as it may."""
        return self.proposals is not None and progress.proposals >= self.proposals


def cores_of(asked: int | None) -> int:
    """How many processes search."""
    from maniple.process import environment
    from maniple.process.inventory import available_cores

    if asked is not None:
        return asked
    return 1 if environment.is_launched() else available_cores()
