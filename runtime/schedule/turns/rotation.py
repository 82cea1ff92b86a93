"""Rotation: the instances of a schedule that take turns, and what a run's rows wait for in the run before."""

from __future__ import annotations

from functools import reduce
from math import lcm
from typing import TYPE_CHECKING, final

from maniple.regions.rectangle import Rect
from maniple.runtime.schedule.instance import InstanceKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from maniple.runtime.schedule.schedule import Schedule
    from maniple.runtime.schedule.turns.ring import Ring

__all__: list[str] = []

Touches = dict[int, list[tuple[int, bool]]]
"""By instance the rows that use it, and whether they write."""


@final
class Rotation:
    """The instances of a schedule that take turns.

    Args:
        schedule: the schedule; it has rings.
    """

    def __init__(self, schedule: Schedule) -> None:
        places = {
            (region.id, ring.memory): (ring, age) for ring in schedule.rings for age, region in enumerate(ring.regions)
        }
        instances = schedule.instances
        found: dict[int, tuple[Ring, int]] = {}
        for number, (region, memory, kind) in enumerate(
            zip(instances.region.tolist(), instances.memory.tolist(), instances.kind.tolist(), strict=True)
        ):
            place = places.get((schedule.regions[region].id, memory))
            if place is not None and kind == InstanceKind.MAIN:
                found[number] = place
        self.places: Mapping[int, tuple[Ring, int]] = found
        """By instance its ring and its age."""
        own: dict[Ring, list[tuple[int, int]]] = {}
        for number, (ring, age) in found.items():
            own.setdefault(ring, []).append((age, number))
        self.rects: Mapping[Ring, Rect] = {
            ring: reduce(Rect.hull, [instances[number].rect for _, number in numbers]) for ring, numbers in own.items()
        }
        """What each place of a ring has room for."""
        self.following: dict[int, int] = {}
        """By instance the one that has its storage when it is next used; what is said of the run after is said of that
        run, too, for lanes take runs in order."""
        for numbers in own.values():
            numbers.sort()
            for (_, number), (_, then) in zip(numbers, [*numbers[1:], numbers[0]], strict=True):
                self.following[number] = then

    def periods(self, instances: Iterable[int]) -> int:
        """After how many runs some instances lie where they lay."""
        return lcm(*(len(self.places[number][0].regions) for number in instances if number in self.places))

    def carried(self, touches: Touches) -> list[tuple[int, int]]:
        """Give (row, row of the next run that waits for it) of what takes turns."""
        return [
            (before, after)
            for number, then in self.following.items()
            for before, writes in touches.get(number, ())
            for after, rewrites in touches.get(then, ())
            if writes or rewrites
        ]


def touches(schedule: Schedule, instances: Sequence[int]) -> Touches:
    """Find the rows that use some instances."""
    starts, instance, _, writes, _ = schedule.access
    wanted, found = set(instances), Touches()
    for row in range(len(schedule)):
        for place in range(starts[row], starts[row + 1]):
            number = int(instance[place])
            if number in wanted:
                found.setdefault(number, []).append((row, bool(writes[place])))
    return found
