"""Scratch of steps: what bodies take beside what they see, measured when they are timed.

A step has, beside its instances, all that its bodies keep from when they are bound, and of each processor the most that
one of its bodies takes while it runs, for a processor runs one at a time, and the most that one has of the scratchpad
that they take turns with, which stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from maniple.process.taken_memory import Taken
from maniple.runtime.schedule.accumulation import scratch_bytes as added_bytes
from maniple.runtime.storage.scratchpad import taken_bytes

if TYPE_CHECKING:
    from maniple.runtime.schedule.launch import Launch
    from maniple.runtime.schedule.schedule import Schedule

__all__: list[str] = []

NOTHING = Taken(0, 0)


@runtime_checkable
class ScratchModel(Protocol):
    """A cost model that knows what bodies take."""

    def scratch(self, launch: Launch) -> Sequence[Taken]:
        """What the body of each task of a launch takes beside what it sees; nothing where that was not measured."""
        ...


def measure_scratch(
    bind: Callable[[], Callable[[], object]], watch: Callable[[Callable[[], object]], Taken | None]
) -> Taken:
    """Measure what a body takes that has run on others before; nothing where no allocator is heard.

    Args:
        bind: binds it.
        watch: runs something, and says what it took.
    """
    bodies: list[Callable[[], object]] = []
    bound = watch(lambda: bodies.append(bind()))
    ran = watch(bodies[0])
    return NOTHING if bound is None or ran is None else Taken(bound.kept, ran.peak)


def scratch_bytes(schedule: Schedule, costs: object) -> tuple[int, ...]:
    """Give what the bodies of a schedule take in each memory beside its instances.

    Args:
        schedule: the step.
        costs: what is known of its tasks; nothing where it is no `ScratchModel`.
    """
    machine = schedule.machine
    sizes = [0] * len(machine.memories)
    if not isinstance(costs, ScratchModel):
        return tuple(sizes)
    most: dict[int, int] = {}
    ends: dict[int, list[int]] = {}
    for launch in schedule.launches:
        for point, taken in zip(launch.points, costs.scratch(launch), strict=True):
            sizes[machine.memory_of(point.processor)] += taken.kept
            most[point.processor] = max(most.get(point.processor, 0), taken.peak)
            ends.setdefault(point.processor, []).append(taken.shared)
    shared = {each: taken_bytes(found, on_host=machine.processor(each).kind == "cpu") for each, found in ends.items()}
    for processor, size in (*most.items(), *shared.items(), *added_bytes(schedule).items()):
        sizes[machine.memory_of(processor)] += size
    return tuple(sizes)
