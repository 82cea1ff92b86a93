"""The launch table: the launches of a simulated step by their places, who uses which region, and what changed.

Every change is noted, so that `undo` takes back all changes since the last `keep`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy as np

if TYPE_CHECKING:
    from maniple.runtime.schedule.network import Column
    from maniple.strategies.simulation.operator_placement import LaunchRows
    from maniple.strategies.simulation.plan_free_step import RegionKey
    from maniple.strategies.simulation.region_cache import Use

__all__: list[str] = []

K = TypeVar("K")
V = TypeVar("V")

REQUIREMENT_BITS = 8
"""The place of a use is that of its launch and, in the lowest bits, the number of the requirement."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class PlacedLaunch:
    """A launch of the step.

    Args:
        name: what the runtime calls it.
        rows: its rows.
        uses: the region and the use of each requirement.
        turn: the stage, the kind of pass and the micro-batch, where processors take its rows in the order of places, as
            `Launch.in_turn` says; else None.
    """

    name: str
    rows: LaunchRows
    uses: tuple[tuple[RegionKey, Use], ...]
    turn: tuple[int, str, int] | None = None

    def turns(self) -> dict[int, Column]:
        """The numbers of its rows by processor, as far as processors take them in the order of places."""
        if self.turn is None:
            return {}
        processors = self.rows.tasks.processors
        return {int(each): np.flatnonzero(processors == each) for each in np.unique(processors)}


@final
class LaunchTable:
    """Launches by place, in program order."""

    def __init__(self) -> None:
        self.launches: dict[int, PlacedLaunch] = {}
        self.users: dict[RegionKey, dict[int, Use]] = {}
        """By region, the place of each use."""
        self.changed: dict[int, None] = {}
        """Places whose launch is another, or gone, since the last `keep` or `undo`."""
        self.touched: dict[RegionKey, None] = {}
        """Regions whose uses or homes are others."""
        self.turns: dict[int, dict[int, Column]] = {}
        """By processor, the rows that it takes in turn of the launch at each place."""
        self.turned: dict[int, None] = {}
        """Processors whose turns are others."""
        self._notes: list[tuple[dict[Any, Any], object, object]] = []

    def keep(self) -> None:
        """Make the changes lasting."""
        for log in (self._notes, self.changed, self.touched, self.turned):
            log.clear()

    def undo(self) -> None:
        """Take all changes since the last `keep` back."""
        for table, key, old in reversed(self._notes):
            if old is None:
                del table[key]
            else:
                table[key] = old
        self.keep()

    def set(self, table: dict[Any, Any], key: object, value: object) -> None:
        """Change an entry of a table (None: it goes), and note what was there."""
        self._notes.append((table, key, table.get(key)))
        if value is None:
            del table[key]
        else:
            table[key] = value

    def put(self, place: int, launch: PlacedLaunch | None) -> None:
        """Set the launch at a place."""
        old = self.launches.get(place)
        if old is None and launch is None:
            return
        for number, (key, _) in enumerate(() if old is None else old.uses):
            self.set(self.users[key], place << REQUIREMENT_BITS | number, None)
            self.touched[key] = None
        for number, (key, use) in enumerate(() if launch is None else launch.uses):
            self.set(self.users.setdefault(key, {}), place << REQUIREMENT_BITS | number, use)
            self.touched[key] = None
        for processor in {} if old is None else old.turns():
            self.set(self.turns[processor], place, None)
            self.turned[processor] = None
        for processor, rows in ({} if launch is None else launch.turns()).items():
            self.set(self.turns.setdefault(processor, {}), place, rows)
            self.turned[processor] = None
        self.set(self.launches, place, launch)
        self.changed[place] = None


def restore(table: dict[K, V], key: K, value: V | None) -> None:
    """Give a table back what it had at a key."""
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
