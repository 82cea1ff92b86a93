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

import numpy as np

from maniple.runtime.execution.run import Run

if TYPE_CHECKING:
    from collections.abc import Collection

    from maniple.runtime.control.waiting import Waiting
    from maniple.runtime.execution.ready_queue import ReadyQueue
    from maniple.runtime.execution.replay import Replay

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

    def doing(self) -> str:
        """Name a task of the run under way that has begun here and not ended; for another thread to ask."""
        last = self._last
        if last is None or not last.left:
            return ""
        schedule = last.replay.schedule
        for times in last.replay.times:
            begun, ended = (np.frombuffer(each, np.int64)[:-1] for each in times)
            rows = np.flatnonzero((begun > ended) & (schedule.processor >= 0))
            if len(rows):
                return schedule.label(int(rows[0]))
        return ""

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

    def begin(self, replay: Replay, slot: int, left: int, serial: int) -> Run:
        """Make the next run of a replay; its lanes raise the counters of their processors on from where they are.

        Args:
            replay: what runs.
            slot: which of its two sets of times the run uses.
            left: its lanes and movements between hosts.
            serial: see `Run`.
        """
        self._submissions += 1
        base: dict[int, int] = {}
        for processor, length in replay.lanes.lengths.items():
            base[processor] = self._taken.get(processor, 0)
            self._taken[processor] = base[processor] + length
        self._last = run = Run(replay, self._submissions, slot, left, base, serial)
        return run

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
