"""Programs: the launches of one step and the regions that they use, before any placement of data."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from maniple.process.gc_pause import pause_gc
from maniple.runtime.analysis.fragment import FragmentKey, HostDistance
from maniple.runtime.analysis.placed_use import Placing
from maniple.runtime.analysis.schedule_builder import ScheduleBuilder
from maniple.runtime.analysis.step_analysis import analyse

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import torch

    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.privilege import Privilege
    from maniple.regions.rectangle import Rect
    from maniple.runtime.analysis.dependence import PlacedUse
    from maniple.runtime.analysis.fragment import Fragment, Home
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.launch import Launch
    from maniple.runtime.schedule.schedule import Schedule
    from maniple.runtime.schedule.turns.ring import Ring
    from maniple.runtime.storage.memory import Memory

__all__: list[str] = []


@dataclass(eq=False, slots=True)
class Port:
    """Where values enter or leave a program: a queue for each memory, one value per run.

    Args:
        memories: where values pass, one for each point of the launch.
        rects: of each the part of a value that it takes; none: all of it.
        queues: for each of them the tensors that wait, oldest first; a rank has those of its own memories to do with.
    """

    memories: tuple[int, ...]
    rects: tuple[Rect, ...] = ()
    queues: tuple[deque[torch.Tensor], ...] = field(init=False)
    _whole: tuple[tuple[int, ...] | None, ...] = field(init=False)
    """The shape of the value of which a rectangle would be all."""

    def __post_init__(self) -> None:
        """Make the queues."""
        self.queues = tuple(deque() for _ in self.memories)
        self._whole = tuple(None if any(rect.lo) else tuple(rect.shape) for rect in self.rects)

    def put(self, value: torch.Tensor, here: Mapping[int, Memory]) -> None:
        """Leave a value for the tasks of a rank with some memories: for a device's where its copies need not wait."""
        for number, (memory, queue) in enumerate(zip(self.memories, self.queues, strict=True)):
            if memory in here:
                part = value
                if self.rects and self._whole[number] != value.shape:
                    part = value[self.rects[number].slices((0,) * value.ndim)]
                device = here[memory].device
                queue.append(part if device is None else device.bring(part))

    def of(self, here: Collection[int]) -> deque[torch.Tensor]:
        """Give the queue of the first of a rank's memories where values pass."""
        return next(queue for memory, queue in zip(self.memories, self.queues, strict=True) if memory in here)

    def clear(self) -> None:
        """Drop what waits."""
        for queue in self.queues:
            queue.clear()


@dataclass(frozen=True, slots=True)
class Program:
    """One step: launches in program order.

    Args:
        launches: what to do.
        homes: for the regions that outlive the step, by id, (memory, rectangles) valid before and after it.
        rings: the regions that take turns with storage from run to run.
    """

    launches: tuple[Launch, ...]
    homes: dict[int, Home]
    rings: tuple[Ring, ...] = ()

    @property
    def lasting(self) -> frozenset[int]:
        """The regions whose valid instances outlive a run in all memories; those of rings do where they take turns."""
        return frozenset(self.homes).difference(region.id for ring in self.rings for region in ring.regions)

    def regions(self) -> tuple[LogicalRegion, ...]:
        """Give the regions in the order of their first use."""
        found: dict[int, LogicalRegion] = {}
        for launch in self.launches:
            for requirement in launch.requirements:
                found.setdefault(requirement.region.id, requirement.region)
        return tuple(found.values())

    def keys(self, machine: Machine) -> tuple[FragmentKey, ...]:
        """Give what determines the fragment of each region, in the order of `regions`."""
        uses: dict[int, list[tuple[Privilege, Sequence[PlacedUse]]]] = {}
        placing = Placing(machine)
        for launch in self.launches:
            for requirement in launch.requirements:
                tasks = placing.uses(launch, requirement)
                uses.setdefault(requirement.region.id, []).append((requirement.privilege, tasks))
        found, made = list[FragmentKey](), dict[tuple[object, ...], FragmentKey]()
        for region in self.regions():
            own, home = uses[region.id], self.homes.get(region.id, ())
            # Equal micro-batches use the same objects, so their keys are found without looking at what these hold.
            alike = (id(region.bounds), id(home), *[id(part) for use in own for part in use])
            if alike not in made:
                made[alike] = FragmentKey(region.bounds, home, tuple(own))
            found.append(made[alike])
        return tuple(found)


_HELD: WeakValueDictionary[tuple[HostDistance, FragmentKey], Fragment] = WeakValueDictionary()
_ONE_AT_A_TIME = threading.Lock()


class FragmentCache:
    """Fragments by what determines them; two regions used alike share one, and so do two plans that differ elsewhere.

    Ranks that are threads of one process lower the same program side by side: what one of them has analysed the others
    take, for as long as somebody's cache holds it.

    Args:
        machine: the machine of all plans that share the cache.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._near = HostDistance.of(machine)
        self.hits = 0
        self._fragments: dict[FragmentKey, Fragment] = {}

    def fragment(self, key: FragmentKey) -> Fragment:
        """Give the fragment of a key, analysed on first use.

        Raises:
            RequestError: interfering tasks, or a read before the first write.
        """
        found = self._fragments.get(key)
        if found is not None:
            self.hits += 1
            return found
        with _ONE_AT_A_TIME:
            found = _HELD.get((self._near, key))
            if found is None:
                found = _HELD[self._near, key] = analyse(key, self._near, leaves=False)
        self._fragments[key] = found
        return found


@pause_gc()
def lower(program: Program, cache: FragmentCache, known: Collection[int] | None = None) -> Schedule:
    """Lower a program to the schedule that runs.

    Args:
        program: the launches of one step.
        cache: fragments of the machine; only what is new is analysed.
        known: the memories of a rank that wants to know of its part: all rows and their order are the same, but nobody
            lists what other memories use, wait for and send each other, but for a few neighbours'. None: all.

    Raises:
        RequestError: interfering tasks, or a read before the first write.
    """
    fragments = [cache.fragment(key) for key in program.keys(cache.machine)]
    regions = program.regions()
    given = program.launches, regions, fragments, program.rings, known, program.lasting
    return ScheduleBuilder(cache.machine, *given).compose()
