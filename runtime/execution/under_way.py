"""Under way: the runs of replays and the rows of launches that one rank has begun and not ended, and their order.

Replays and launches as they come do not mix: whichever comes next waits until the other kind has ended. Two runs of one
replay may be under way together, for counters say what waits for what:

    program      launch  launch  submit a  submit a       submit b            launch
    under way    rows    rows    a         a, a           b                   rows
    waits first  .       .       for rows  .              for both runs of a  for b
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from maniple.runtime.control.waiting import Waiting
    from maniple.runtime.execution.ready_queue import ReadyQueue
    from maniple.runtime.execution.replay import Replay
    from maniple.runtime.execution.run import Run

__all__: list[str] = []


@final
class UnderWay:
    """What a rank has begun and not ended.

    Args:
        waiting: how its threads wait.
    """

    def __init__(self, waiting: Waiting) -> None:
        self.current: Replay | None = None
        """The replay whose runs may be under way; None where launches come one by one."""
        self._waiting = waiting
        self._last: Run | None = None
        self._taken: dict[int, int] = {}
        self._submissions = 0
        self._queues: weakref.WeakSet[ReadyQueue] = weakref.WeakSet()

    @property
    def rows(self) -> int:
        """How many rows of launches there are that were released and are not done."""
        return sum(queue.rows for queue in self._queues)

    @property
    def replaying(self) -> bool:
        """Whether a run is under way."""
        return self._last is not None and self._last.left > 0

    def attend(self, queue: ReadyQueue) -> None:
        """Count the rows of a queue too, for as long as there is one."""
        with self._waiting.lock:  # who drains counts them under it
            self._queues.add(queue)

    def enter(self, replay: Replay) -> None:
        """Have runs of a replay come next, once all else has ended.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        self.drain()
        self.current = replay

    def leave(self) -> None:
        """Have launches come next, once what was replayed has ended: it left no rows that they could wait for.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        self.drain()
        self.current = None

    def reserve(self, lengths: Mapping[int, int]) -> tuple[int, dict[int, int]]:
        """Number a submission, and say from which values on its lanes raise the counters of their processors.

        Args:
            lengths: by processor, how many steps its lane has.

        Returns:
            The number, which every rank gives alike, and the counters by processor.
        """
        self._submissions += 1
        base = {processor: self._taken.get(processor, 0) for processor in lengths}
        self._taken.update({processor: base[processor] + length for processor, length in lengths.items()})
        return self._submissions, base

    def follow(self, run: Run) -> None:
        """Take note of a run that begins."""
        self._last = run

    def retire(self, replays: Collection[Replay]) -> None:
        """Let go of replays that will not run again, and of their storage."""
        if self.current in replays:
            self.current = None
        if self._last is not None and self._last.replay in replays and not self._last.left:
            self._last = None

    def drain(self) -> None:
        """Block until nothing is under way at this rank.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        if self._last is not None:
            self._last.finish()
        self.await_rows()

    def await_rows(self) -> None:
        """Block until every row released so far is done at this rank.

        Raises:
            RunError: a task failed, here or on another rank.
        """
        self._waiting.await_done(lambda: not self.rows)
