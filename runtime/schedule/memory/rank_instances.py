"""Rank instances: which instances of a schedule one rank holds, and what they take of its memories."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from maniple.runtime.schedule.memory.memory_plan import plan_memory
from maniple.runtime.schedule.schedule import InstanceKind

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from maniple.runtime.schedule.memory.lifetime import Lifetimes
    from maniple.runtime.schedule.memory.memory_plan import MemoryPlan
    from maniple.runtime.schedule.schedule import Schedule

__all__: list[str] = []


@final
class RankInstances:
    """The instances of a schedule in one rank's memories, before there is storage for them.

    Args:
        schedule: what runs.
        memories: the rank's memories.
        outliving: ids of the regions whose valid instances outlive the schedule.
    """

    def __init__(self, schedule: Schedule, memories: Collection[int], outliving: Collection[int]) -> None:
        self._schedule = schedule
        self._memories = tuple(sorted(memories))
        instances = schedule.instances
        here = np.isin(instances.memory, self._memories)
        outlives = np.asarray([region.id in outliving for region in schedule.regions], dtype=np.bool_)
        lasts = here & (instances.kind == InstanceKind.MAIN) & outlives[instances.region]
        places = schedule.rotation.places if schedule.rings else {}
        lasts[[number for number in places if here[number]]] = True
        self._rotating = {number: ring for number, (ring, _) in places.items() if here[number]}
        self.lasting = tuple(np.flatnonzero(lasts).tolist())
        """The numbers of those that outlive the schedule."""
        self.temporary = tuple(np.flatnonzero(here & ~lasts).tolist())
        """The numbers of those that live within a run."""

    def plan(self, lifetimes: Lifetimes) -> dict[int, MemoryPlan]:
        """Decide, by memory, where the instances that live within a run will lie."""
        sizes: dict[int, dict[int, int]] = {memory: {} for memory in self._memories}
        for number in self.temporary:
            sizes[self._schedule.instances[number].memory][number] = self.size(number)
        return {memory: plan_memory(lifetimes, of_memory) for memory, of_memory in sizes.items()}

    def needs(self, plans: Mapping[int, MemoryPlan]) -> dict[int, int]:
        """Sum the bytes that a run takes in each memory.

        Args:
            plans: by memory, as `plan` gives them.
        """
        found = {memory: plan.size for memory, plan in plans.items()}
        for number in self.lasting:
            if number not in self._rotating:
                found[self._schedule.instances[number].memory] += self.size(number)
        for ring in dict.fromkeys(self._rotating.values()):
            volume = self._schedule.rotation.rects[ring].volume
            found[ring.memory] += sum(volume * region.itemsize for region in ring.regions)
        return found

    def size(self, number: int) -> int:
        """The bytes of an instance."""
        instance = self._schedule.instances[number]
        return instance.rect.volume * self._schedule.regions[instance.region].itemsize
