"""The closing of a run: what is done with ranks that do not end by themselves, in which order and when. Pure.

Ranks are asked first and killed last, and before anything is killed every rank that can writes its stacks to its log.

===========  ==================  ===================  ====================  ===========  =======
seconds      0                   0.5                  1                     1.5          3.5
===========  ==================  ===================  ====================  ===========  =======
a fault      tell                                     stacks                terminate    kill
no answer    stacks              tell, kill it                              terminate    kill
interrupted  tell, stacks        terminate                                               (2.5)
===========  ==================  ===================  ====================  ===========  =======
"""

from __future__ import annotations

from enum import Enum
from typing import final

__all__: list[str] = []

LAST_WORDS_S = 1.0
"""For a rank that is told that the run is over to raise, print and end by itself."""
STACKS_S = 0.5
"""For a rank to write its stacks, which takes milliseconds, on a host where others come first."""
TERMINATION_S = 2.0
"""For a program to handle SIGTERM, before it is killed."""


class Step(Enum):
    """What is done with the ranks whose processes have not ended."""

    TELL = "tell"
    STACKS = "stacks"
    KILL_SILENT = "kill silent"
    TERMINATE = "terminate"
    KILL = "kill"


@final
class Closing:
    """The steps that are left, with their times.

    Args:
        now: seconds.
        stuck: whether ranks are stopped where they are, so that their stacks come before all else.
        interrupted: whether the user wants an end, so that nobody is waited for.
    """

    def __init__(self, now: float, *, stuck: bool = False, interrupted: bool = False) -> None:
        if stuck:
            told = now + STACKS_S
            end = told + LAST_WORDS_S
            first = [(now, Step.STACKS), (told, Step.KILL_SILENT), (told, Step.TELL)]
        else:
            stacks = now if interrupted else now + LAST_WORDS_S
            end = stacks + STACKS_S
            first = [(now, Step.TELL), (stacks, Step.STACKS)]
        self._left = [*first, (end, Step.TERMINATE), (end + TERMINATION_S, Step.KILL)]

    def due(self, now: float) -> list[Step]:
        """Take the steps whose time has come, in order."""
        found = [step for at, step in self._left if at <= now]
        self._left = self._left[len(found) :]
        return found

    def hurry(self) -> None:
        """Leave out all but the end: the user insists."""
        self._left = []
