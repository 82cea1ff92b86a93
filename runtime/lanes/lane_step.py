"""Lane steps: the steps of a lane, bound to what they do, as the interpreter takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from maniple.runtime.lanes.progress import TABLES
from maniple.runtime.transports.shared_memory import LINE

__all__: list[str] = []

Pause = Callable[[], bool]
"""Says whether what a lane waits for has come."""


class LaneStep(NamedTuple):
    """One step.

    Args:
        first: where to note its beginning: its row, or -1 where an earlier step of the row has.
        row: where to note its end; -1 where it belongs to no row.
        call: what to do; None for nothing.
        waits: (how, where, counter, value) of what to wait for; how waits for a value, and says whether it has come;
            where is a counter's address, or the copy engine's row.
        lands: (first, row) of the rows of which tiles have arrived after the waits.
        steps: the steps taken with it, where somebody waits for it; else 0.
    """

    first: int
    row: int
    call: Callable[[], object] | None
    waits: tuple[tuple[Callable[[int, int], bool], int, int, int], ...]
    lands: tuple[tuple[int, int], ...]
    steps: int


class Meeting:
    """A step that waits until another rank has begun the run.

    Args:
        meet: does so, and binds the pushes to that rank anew if its table is another; gives the table.
        begun: address of that rank's counter of runs.
        tables: address of the place of its first table.
    """

    __slots__ = ("_meet", "begun", "table", "tables")

    def __init__(self, meet: Callable[[], int], begun: int, tables: int) -> None:
        self._meet, self.begun, self.tables = meet, begun, tables
        self.table = 0

    def __call__(self) -> None:
        """Meet."""
        self.table = self._meet()

    def block(self) -> list[int]:
        """The words that `meet` of the compiled lane reads."""
        return [self.begun, self.tables, TABLES, LINE, self.table]


class StepFailed(Exception):  # noqa: N818  (it says what happened; nobody outside of replays sees it)
    """Says that the call of a step raised what this was raised from.

    Args:
        row: the step's row.
        index: its place in the lane, where compiled code took it; else -1.
    """

    def __init__(self, row: int, index: int = -1) -> None:
        super().__init__(row, index)
        self.row, self.index = row, index
