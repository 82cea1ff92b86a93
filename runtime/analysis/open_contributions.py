"""Open contributions: those to which later tasks of their processors add in place, where contributions accumulate.

    use  p0            p1
    0    makes #0      makes #1
    1    adds to #0    adds to #1
    2    a read folds #0 and #1
    3    makes #2      makes #3

A replica of a task, which computes once more what counts already, makes one of its own, to which nobody adds.
`regions/columns/dependence.py` has the same rule compiled.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.validity import Validity
    from maniple.runtime.analysis.placed_use import PlacedUse

__all__: list[str] = []

Key = tuple[int, ...]
"""The number of a use, and behind it the colour of the task that contributes."""


class OpenContributions:
    """The open contributions of a region, by the processor and the elements of their tasks."""

    def __init__(self) -> None:
        self._keys: dict[tuple[int, IndexSpace], Key] = {}

    def joins(self, ordinal: int, uses: Sequence[PlacedUse], validity: Validity) -> dict[int, Key]:
        """Say which tasks of a use add to an open contribution, and to which, by point; nothing is changed.

        Args:
            ordinal: the number of the use.
            uses: its tasks.
            validity: what waits before it: what was folded, be it in part, is open no more.
        """
        waiting: dict[Key, int] = {}
        for item in validity.pending:
            waiting[item.key] = waiting.get(item.key, 0) + item.rect.volume
        made: dict[tuple[int, IndexSpace], Key] = {}
        found: dict[int, Key] = {}
        for use in _counted(uses):
            place = use.processor, use.rect
            known = self._keys.get(place)
            if place in made:
                found[use.point] = made[place]
            elif known is not None and waiting.get(known, 0) == use.rect.volume:
                found[use.point] = known
            else:
                made[place] = (ordinal, *use.color)
        return found

    def add(self, ordinal: int, uses: Sequence[PlacedUse], joins: Mapping[int, Key]) -> None:
        """Open what the tasks of a use contribute, of those that add to nothing else."""
        for use in _counted(uses):
            if use.point not in joins:
                self._keys[use.processor, use.rect] = (ordinal, *use.color)


def _counted(uses: Sequence[PlacedUse]) -> Iterator[PlacedUse]:
    """The tasks that use something and are no replicas, which are next to what they repeat."""
    there = [use for use in uses if not use.rect.is_empty]
    yield from there[:1]
    yield from (use for before, use in pairwise(there) if use.color != before.color)
