"""Runs: single executions of a replay, under way or over, well or not."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

from maniple.runtime.lanes.cycle import Moment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maniple.runtime.execution.replay import Replay
    from maniple.runtime.lanes.lane_program import LaneProgram
    from maniple.runtime.lanes.lane_step import Pause
    from maniple.runtime.schedule.failure import TaskFailed

__all__: list[str] = []


class Run:
    """One run of a replay, perhaps still going on at this rank.

    Args:
        replay: what runs.
        number: the submission, counted over all replays of the rank; also the account of its bytes.
        slot: which of the replay's two sets of times it uses.
        left: lanes and movements between hosts that have not ended.
        base: the value of every counter when it began.
        serial: its number in a program of launches; 0 for a step of a trainer.
    """

    def __init__(
        self, replay: Replay, number: int, slot: int, left: int, base: dict[int, int], serial: int = 0
    ) -> None:
        self.replay = replay
        self.number = number
        self.slot = slot
        self.left = left
        self.base = base
        self.serial = serial
        self.programs: Mapping[int, LaneProgram] = {}
        self.moment = Moment()
        self.failure: TaskFailed | None = replay.failure
        self.ended_ns = 0
        """When the last of these ended; 0 until then."""
        self._heard = False

    def reach(self, failure: TaskFailed | None) -> bool:
        """Take note of what failed before one of its tasks; says whether anything has, now or before."""
        self.failure = self.failure or failure
        return self.failure is not None

    def end_one(self) -> bool:
        """Take note, under the rank's lock, that a lane or movement has ended; says whether it was the last."""
        self.left -= 1
        if not self.left:
            self.ended_ns = perf_counter_ns()
        return not self.left

    def stopped(self) -> bool:
        """Say whether a failure ended it, at this rank or before it got here."""
        return self.failure is not None or (self.left > 0 and self.replay.halted)

    def wait(self) -> None:
        """Block until this rank's share is done.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        self.finish()
        if self.failure is not None:
            raise self.failure.again()

    def finish(self) -> None:
        """Block until this rank's share is done, well or not; a failure of its own is raised to the first who waits.

        Raises:
            RunError: a task failed, here or on another rank, of which nobody was told.
        """
        if self.left:
            self.replay.await_end(self)
        if self.failure is not None and not self._heard:
            self._heard = True
            raise self.failure.again()


class Share:
    """One processor's share of a run, as work for whoever takes it on.

    Args:
        replay: what runs.
        processor: whose lane.
        run: the run.
    """

    __slots__ = ("_begun", "_processor", "_replay", "_run")

    def __init__(self, replay: Replay, processor: int, run: Run) -> None:
        self._replay, self._processor, self._run = replay, processor, run
        self._begun = False

    def __call__(self) -> Pause | None:
        """Take the steps of the lane; gives what says whether it can go on, where nothing may wait."""
        return self._take(without_waiting=False)

    def take_without_waiting(self) -> bool:
        """Take what steps are compiled and need not wait; says whether that were all."""
        return self._take(without_waiting=True) is None

    def _take(self, *, without_waiting: bool) -> Pause | None:
        begin, self._begun = not self._begun, True
        return self._replay.take(self._processor, self._run, begin=begin, without_waiting=without_waiting)
