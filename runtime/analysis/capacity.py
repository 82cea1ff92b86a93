"""Capacity: what wants to live in each memory, what makes room for it, and what cannot fit."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from maniple.process.error import RoomError
from maniple.runtime.schedule.schedule import InstanceKind

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.rectangle import Rect
    from maniple.runtime.analysis.dependence import RegionAnalysis
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.schedule import Schedule
    from maniple.runtime.transports import record

__all__: list[str] = []

# So many of what wants to live in a memory are listed, the largest first.
_LISTED = 12
# The scratch of bodies is measured where a memory has less room than so many times what the instances of a step take.
AMPLE = 8


@dataclass(frozen=True, slots=True)
class Resident:
    """Something that lives, or wants to live, in a memory.

    Args:
        name: region, elements and why it is there.
        size: bytes.
    """

    name: str
    size: int

    @classmethod
    def of(cls, told: record.Field) -> Resident:
        """Read what a rank told of one."""
        name, size = told.items(2)
        return cls(name.string(), size.integer())


NOTHING: Mapping[int, Sequence[Resident]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Eviction:
    """An instance of valid values that makes room.

    Args:
        region: id of its region.
        memory: where it is.
        refuge: the memory that what is valid only there is copied to; None if all of it is valid elsewhere.
    """

    region: int
    memory: int
    refuge: int | None


def roomy(schedule: Schedule) -> bool:
    """Say whether every memory has `AMPLE` times the room of all instances of a schedule at once.

    Then the scratch of its bodies is not looked at: nothing known takes so much more than all instances of a step.
    """
    need = schedule.memory_bytes()
    return all(AMPLE * need[memory.id] <= memory.capacity_bytes for memory in schedule.machine.memories)


def passing(schedule: Schedule, need: Mapping[int, int], lasting: Collection[int]) -> dict[int, Resident]:
    """Give, by memory, what a run of a schedule takes there beside the instances that outlive it.

    Args:
        schedule: the schedule.
        need: bytes that a run takes in each memory, those of such instances included.
        lasting: ids of the regions whose valid instances outlive it.
    """
    instances = schedule.instances
    sizes = np.asarray([region.itemsize if region.id in lasting else 0 for region in schedule.regions], dtype=np.int64)
    lasts = np.zeros(len(schedule.machine.memories), dtype=np.int64)
    mains = instances.kind == InstanceKind.MAIN
    np.add.at(lasts, instances.memory[mains], (instances.elements * sizes[instances.region])[mains])
    name = "what lives within a run (asked for)"
    return {memory: Resident(name, size - int(lasts[memory])) for memory, size in sorted(need.items())}


def check_schedule(schedule: Schedule, need: Mapping[int, int], scratch: Mapping[int, Sequence[Resident]]) -> None:
    """Refuse a schedule that some memory cannot hold.

    Args:
        schedule: the schedule.
        need: bytes that a run takes in each memory, where instances that are never alive together take turns.
        scratch: what bodies take besides, by memory.

    Raises:
        RequestError: lists what wanted to live in the first such memory, and how big each was.
    """
    for memory in schedule.machine.memories:
        besides = scratch.get(memory.id, ())
        whole = need[memory.id] + sum(resident.size for resident in besides)
        if whole <= memory.capacity_bytes:
            continue
        residents = [
            *besides,
            *(
                Resident(
                    f"{schedule.regions[instance.region].name}{instance.rect} ({instance.kind.name.lower()})",
                    instance.rect.volume * schedule.regions[instance.region].itemsize,
                )
                for instance in schedule.instances
                if instance.memory == memory.id
            ),
        ]
        raise _too_small("this step", schedule.machine, memory.id, residents, whole)


class Occupancy:
    """How full the memories are, as a program's launches come: the same on every rank.

    Instances of valid values are counted exactly. Of all others the sum of what was ever made is kept, which costs
    nothing; only when that does not fit are those counted that still hold contributions.

    Args:
        machine: says what the memories hold.
        regions: the state of every region of the program, by id.
        logical: the regions.
    """

    def __init__(
        self, machine: Machine, regions: Mapping[int, RegionAnalysis], logical: Mapping[int, LogicalRegion]
    ) -> None:
        self.machine = machine
        self._regions = regions
        self._logical = logical
        self._used: dict[int, int] = {}
        self._counted: dict[int, dict[int, int]] = {}
        self._sums = dict.fromkeys((memory.id for memory in machine.memories), 0)
        self._clock = 0

    def note(self, region: int) -> None:
        """Count a region again after a launch used it."""
        self.note_use(region)
        self._count(region)

    def note_use(self, region: int) -> None:
        """Take note that a launch used a region, and left its instances as they were."""
        self._clock += 1
        self._used[region] = self._clock

    def drop(self, region: int) -> None:
        """Count a region no more."""
        self._used.pop(region, None)
        for memory, size in self._counted.pop(region, {}).items():
            self._sums[memory] -= size

    def _count(self, region: int) -> None:
        table, itemsize = self._regions[region].instances, self._logical[region].itemsize
        found = {
            memory: itemsize * (table.main.get(memory, 0) + table.temporary.get(memory, 0))
            for memory in {**table.main, **table.temporary}
        }
        for memory, size in self._counted.get(region, {}).items():
            self._sums[memory] -= size
        for memory, size in found.items():
            self._sums[memory] += size
        self._counted[region] = found

    def evictions(
        self,
        launch: str,
        rooms: Mapping[tuple[int, int], Rect],
        others: Mapping[tuple[int, int], int],
        besides: Mapping[int, Sequence[Resident]] = NOTHING,
    ) -> list[Eviction]:
        """Choose what makes room for launches: instances that they do not use, those used longest ago first.

        Args:
            launch: what messages call them.
            rooms: for (region, memory) what the instance of valid values must have room for, where it must grow.
            others: for (region, memory) the elements of its contributions and of tiles on their way.
            besides: by memory, what else must have room there.

        Raises:
            RequestError: nothing makes enough room; lists what wanted to live in the memory, and how big each was.
        """
        asked: dict[int, int] = {}
        for (region, memory), rect in rooms.items():
            asked[memory] = asked.get(memory, 0) + rect.volume * self._logical[region].itemsize
        for (region, memory), elements in others.items():
            asked[memory] = asked.get(memory, 0) + elements * self._logical[region].itemsize
        for memory, residents in besides.items():
            asked[memory] = asked.get(memory, 0) + sum(resident.size for resident in residents)
        chosen: list[Eviction] = []
        for memory, size in sorted(asked.items()):
            if self._sums[memory] + size > self._capacity(memory):
                busy = {region for region, _ in (*rooms, *others)}
                wanted = [*_residents(memory, rooms, others, self._logical), *besides.get(memory, ())]
                chosen += self._make_room(launch, memory, size, busy, wanted)
        return chosen

    def _capacity(self, memory: int) -> int:
        return self.machine.memories[memory].capacity_bytes

    def _make_room(
        self, launch: str, memory: int, size: int, busy: set[int], wanted: Sequence[Resident]
    ) -> list[Eviction]:
        for region in sorted(self._counted):
            self._recount(region)
        missing = self._sums[memory] + size - self._capacity(memory)
        chosen: list[Eviction] = []
        for region in sorted(self._counted, key=lambda region: (self._used[region], region)):
            held = self._regions[region].instances.main.get(memory, 0) * self._logical[region].itemsize
            if missing <= 0:
                break
            if not held or region in busy:
                continue
            alone = self._regions[region].validity.alone(memory)
            refuge = None if alone is None else self._refuge(memory, region, alone)
            if alone is None or refuge is not None:
                chosen.append(Eviction(region, memory, refuge))
                missing -= held
        if missing > 0:
            raise _too_small(launch, self.machine, memory, [*wanted, *self._residents(memory)])
        return chosen

    def _recount(self, region: int) -> None:
        """Count only the contributions that wait, not all there ever were."""
        analysis = self._regions[region]
        if analysis.instances.temporary:
            analysis.instances.temporary.clear()
            for instance in sorted(analysis.pending_instances()):
                memory, _, rect = analysis.extents[instance]
                table = analysis.instances.temporary
                table[memory] = table.get(memory, 0) + rect.volume
            self._count(region)

    def _refuge(self, memory: int, region: int, alone: Rect) -> int | None:
        """The nearest memory that has room for what is valid in this one only."""
        analysis = self._regions[region]
        found = []
        for other in self.machine.memories:
            grown = analysis.instances.growth(other.id, alone, analysis.bounds)
            size = 0 if grown is None else grown.volume * self._logical[region].itemsize
            if other.id != memory and self._sums[other.id] + size <= other.capacity_bytes:
                distance = 0 if analysis.near is None else analysis.near(memory, other.id)
                found.append((distance, other.id))
        return min(found)[1] if found else None

    def _residents(self, memory: int) -> list[Resident]:
        found = []
        for region, sizes in sorted(self._counted.items()):
            if sizes.get(memory):
                room = self._regions[region].instances.room(memory)
                place = "" if room is None else str(room[1])
                found.append(Resident(f"{self._logical[region].name}{place} (there already)", sizes[memory]))
        return found


def _residents(
    memory: int,
    rooms: Mapping[tuple[int, int], Rect],
    others: Mapping[tuple[int, int], int],
    logical: Mapping[int, LogicalRegion],
) -> list[Resident]:
    found = [
        Resident(f"{logical[region].name}{rect} (asked for)", rect.volume * logical[region].itemsize)
        for (region, place), rect in rooms.items()
        if place == memory
    ]
    return found + [
        Resident(f"contributions to {logical[region].name} (asked for)", elements * logical[region].itemsize)
        for (region, place), elements in others.items()
        if place == memory
    ]


def _too_small(
    what: str, machine: Machine, memory: int, residents: Sequence[Resident], need: int | None = None
) -> RoomError:
    ranked = sorted(residents, key=lambda resident: (-resident.size, resident.name))
    listed = "".join(f"\n  {resident.size:>14,} B  {resident.name}" for resident in ranked[:_LISTED])
    rest = ranked[_LISTED:]
    more = f"\n  {sum(resident.size for resident in rest):>14,} B  {len(rest)} more" if rest else ""
    total = sum(resident.size for resident in residents)
    turns = "" if need is None or need == total else f", {need:,} B where those never alive together take turns"
    place = machine.memories[memory]
    beyond = (total if need is None else need) - place.capacity_bytes
    return RoomError(
        f"{what} does not fit into memory {memory} (rank {place.rank}): it holds {place.capacity_bytes:,} B, and "
        f"{total:,} B want to live there{turns}, {beyond:,} B too many:{listed}{more}\n"
        "use more ranks, smaller tiles, or drop regions"
    )
