"""The stepper: all ranks of a process taken on by one thread, a turn each, in place of a thread for every part of them.

What a rank consists of beside its program (processors, a copy engine) is pure state that takes turns: it does what it
can without waiting and says whether that was anything. Who would block has the others take turns instead. So the
ranks of a test or a benchmark run in one order, always the same, and a rank costs what it does, not what the system
takes to switch between threads:

    round   rank 0           rank 1           rank 2
    ======  ===============  ===============  ===============
    1       lane, engine     lane, engine     lane, engine
    2       lane, engine     lane, engine     lane, engine

The programs of the ranks are then the thread's own: it makes the launches of one rank after those of another, and
waits for any of them once all have made theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from maniple.process.error import RunError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []


@final
class Stepper:
    """What takes turns, in order."""

    def __init__(self) -> None:
        self._turns: list[Callable[[], bool]] = []

    def add(self, turn: Callable[[], bool]) -> None:
        """Have something take turns, after all that do already.

        Args:
            turn: does what can be done without waiting; says whether that was anything.
        """
        self._turns.append(turn)

    def remove(self, turn: Callable[[], bool]) -> None:
        """Have something take no more turns; nothing, where it takes none."""
        self._turns = [other for other in self._turns if other != turn]

    def until(self, done: Callable[[], bool]) -> None:
        """Have all take turns until something is done.

        Raises:
            RunError: nobody can go on.
        """
        while not done():
            if not sum([turn() for turn in self._turns]):
                msg = "no rank can go on: what this one waits for is launched nowhere; launch on all ranks, then wait"
                raise RunError(msg)
