"""The phases of a run, as its coordinator goes through them."""

from __future__ import annotations

from enum import Enum

__all__: list[str] = []


class Phase(Enum):
    """Where a run is."""

    JOINING = "joining"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
