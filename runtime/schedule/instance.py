"""Instances: storage for rectangles of regions in memories, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from maniple.runtime.schedule.on_demand import OnDemand

if TYPE_CHECKING:
    import numpy as np

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.rectangle import Rect

    Column = np.ndarray[tuple[int], np.dtype[np.int64]]

__all__: list[str] = []


class InstanceKind(IntEnum):
    """Why a memory holds an instance: the valid copy, a task's contribution, or a tile on its way to a fold."""

    MAIN = 0
    REDUCTION = 1
    STAGING = 2


@dataclass(frozen=True, slots=True)
class Instance:
    """Storage for one rectangle of one region in one memory.

    Args:
        region: index in `Schedule.regions`.
        memory: the memory that holds it.
        kind: why it exists.
        rect: the elements it has room for.
    """

    region: int
    memory: int
    kind: InstanceKind
    rect: Rect


class Instances(OnDemand[Instance]):
    """The instances of a schedule; one is made when somebody asks for it.

    Args:
        region: index in `Schedule.regions` of each.
        memory: the memory that holds each.
        kind: why each exists.
        rect: index in `rects` of what each has room for.
        elements: how many elements that are.
        rects: rectangles, and index spaces that no instance is of.
    """

    def __init__(
        self,
        region: Column,
        memory: Column,
        kind: Column,
        rect: Column,
        elements: Column,
        rects: Sequence[IndexSpace],
    ) -> None:
        self.region, self.memory, self.kind, self.elements = region, memory, kind, elements
        self._rect, self._rects = rect, rects
        self._made: dict[int, Instance] = {}

    def __len__(self) -> int:
        """Count them."""
        return len(self.memory)

    def item(self, number: int) -> Instance:
        """Give one of them."""
        found = self._made.get(number)
        if found is None:
            rect: Rect = self._rects[int(self._rect[number])]  # type: ignore[assignment]
            kind = InstanceKind(int(self.kind[number]))
            found = self._made[number] = Instance(int(self.region[number]), int(self.memory[number]), kind, rect)
        return found
