"""The course of a run, or of one attempt at it: when it got how far, by the coordinator's clock.

begun      joined     first step          at fault   ended
├──────────┼──────────┼───────────────────┼──────────┤
  imports    lowering   steps 30 to 37      ending
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

__all__: list[str] = []


@final
@dataclass(slots=True)
class Course:
    """How far a run has come, and when; times are in seconds of one clock, None where it has not come so far.

    Args:
        begun: when it was begun.
        joined: when all ranks were there.
        stepped: when the first step of a training was done; half a second late, at most.
        faulted: when it was decided to end it.
        ended: when all ranks had ended.
        before: the steps of its training that had been done before.
        reached: the steps that were done, those before counted; those of the last half second may be missing.
    """

    begun: float | None = None
    joined: float | None = None
    stepped: float | None = None
    faulted: float | None = None
    ended: float | None = None
    before: int = 0
    reached: int = 0

    def note_steps(self, before: int, reached: int, now: float) -> None:
        """Take in how far a rank's training is."""
        if reached <= self.reached:
            return
        self.before, self.reached = before, reached
        if self.stepped is None and reached > before:
            self.stepped = now
