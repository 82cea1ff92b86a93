"""Runs: single executions of a replay, under way or over, well or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maniple.runtime.execution.replay import Replay
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
        self.failure: TaskFailed | None = replay.failure
        self._heard = False

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
        runtime = self.replay.runtime
        if self.left:
            runtime.help()
            runtime.await_done(lambda: not self.left)
        if self.failure is not None and not self._heard:
            self._heard = True
            raise self.failure.again()
