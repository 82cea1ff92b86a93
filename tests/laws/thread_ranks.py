"""Ranks that are threads of this process: a new world of them runs one function, and all must come back in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from maniple.runtime.control.world import World
from maniple.testing import local_worlds
from maniple.testing import run_on_worlds as run_on_worlds

T = TypeVar("T")


def run_on_ranks(
    size: int,
    body: Callable[[World], T],
    *,
    processors: int = 1,
    nodes: int | None = None,
    shuffle: int | None = None,
    shared: bool = False,
    deadline_s: float = 90.0,
) -> list[T]:
    """What the body returned on each rank of a new world.

    Args:
        size: number of ranks.
        body: the program.
        processors: of each rank.
        nodes: that the ranks pretend to be on; by default one each.
        shuffle: a seed, to have deliveries of different ranks overtake each other.
        shared: whether they share memory.
        deadline_s: seconds for all ranks together.
    """
    return run_on_worlds(local_worlds(size, nodes, processors, shuffle=shuffle, shared=shared), body, deadline_s)
