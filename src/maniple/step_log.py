"""The step log: how long every step took, and what happened when in a few of them, evenly spread over all."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from maniple.runtime.execution.replay import Replay
    from maniple.step_run import StepRun

__all__: list[str] = []

MOST_KEPT = 16
"""Of so many steps at most the times of all rows are kept."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class LoggedStep:
    """A step that has ended here.

    Args:
        number: from 0, of the trainer's steps.
        run: the submission.
        replay: what ran.
        before_ns: when the step before had ended; when this one was submitted, if it is the first.
        begun_ns: when it was submitted.
        ended_ns: when it had ended at this rank.
        times: start and end of every row.
    """

    number: int
    run: int
    replay: Replay
    before_ns: int
    begun_ns: int
    ended_ns: int
    times: tuple[array[int], array[int]]

    @property
    def period_ns(self) -> int:
        """How long it took, with what the program did before it."""
        return self.ended_ns - self.before_ns


@final
class StepLog:
    """The steps of a trainer at its graph's own batch.

    Of steps 0 to 15 all are kept, of 0 to 31 every second, and so on: the same ones on all ranks.
    """

    def __init__(self) -> None:
        self.periods_ns = array("q")
        self.others = 0
        self.kept: list[LoggedStep] = []
        self._every = 1
        self._ended_ns = 0

    def add(self, step: StepRun, *, whole: bool) -> int:
        """Take note of a step that has ended, and give the nanoseconds from the end of the one before to its own.

        Args:
            step: the step; no later one has been noted.
            whole: whether it is one to count: others, of smaller batches or checked, only end when they do.
        """
        run = step.run
        ended_ns = max(run.ended_ns, step.begun_ns)
        before_ns, self._ended_ns = self._ended_ns or step.begun_ns, ended_ns
        if not whole:
            self.others += 1
            return ended_ns - before_ns
        number = len(self.periods_ns)
        self.periods_ns.append(ended_ns - before_ns)
        if number % self._every:
            return ended_ns - before_ns
        begun, ended = run.replay.times[run.slot]
        times = begun[:], ended[:]
        self.kept.append(LoggedStep(step.number, run.number, run.replay, before_ns, step.begun_ns, ended_ns, times))
        if len(self.kept) > MOST_KEPT:
            del self.kept[1::2]
            self._every *= 2
        return ended_ns - before_ns

    def median_ns(self) -> int:
        """The lower median of the steps that count; there is at least one."""
        return sorted(self.periods_ns)[(len(self.periods_ns) - 1) // 2]

    def typical(self) -> int:
        """Which of those that are kept took as long as the median, or most nearly so."""
        median = self.median_ns()
        return min(range(len(self.kept)), key=lambda place: abs(self.kept[place].period_ns - median))
