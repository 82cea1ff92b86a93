"""Rings: regions that take turns, from run to run, with storage that outlives runs.

A value that is written in one run and read two runs later has three places. The program of a run speaks of ages: age 0
is written, age 2 is read. From one run to the next everything grows older, so nothing is copied:

    run      0    1    2    3    4
    age 0    a    c    b    a    c
    age 1    b    a    c    b    a
    age 2    c    b    a    c    b

What is of age 0 in run 0 lies in a; in run 2 it is of age 2, and in run 3 a is written again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from maniple.regions.logical_region import LogicalRegion

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class Ring:
    """Regions of which a memory holds as many instances, which take turns.

    Args:
        memory: the memory.
        regions: by age; there are at least two.
    """

    memory: int
    regions: tuple[LogicalRegion, ...]

    def place(self, age: int, run: int) -> int:
        """Which of the regions has the storage that is of an age in a run: the one that is of that age in run 0."""
        return (age - run) % len(self.regions)
