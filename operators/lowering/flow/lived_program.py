"""Where what outlives a run is valid as the next begins, and which memories have places for it that take turns.

h         written on m0, read on m1 in forward and in backward, a run later
h'1       is valid on m1, for forward had it brought there; m0 has no place for it
h.grad    written on m1, read on m0 a run later: is valid on m1, from where it is brought then
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from maniple.process.error import RequestError
from maniple.regions.index_space import union, without
from maniple.runtime.schedule.turns.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.privilege import Privilege
    from maniple.runtime.analysis.fragment import Home
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.launch import Launch

    Places = dict[int, list[IndexSpace]]

__all__: list[str] = []


@final
@dataclass(eq=False)
class Family:
    """The regions of one thing that outlives runs.

    Args:
        regions: by age; where there are fewer than ages, what is oldest is read before the newest is written over it.
        home: of a weight; it is valid there at every age.
    """

    regions: tuple[LogicalRegion, ...]
    home: Home = ()
    _read: dict[int, Places] = field(default_factory=dict)
    _left: dict[int, Places] = field(default_factory=dict)
    _changed: set[int] = field(default_factory=set)
    _used: dict[int, int] = field(default_factory=dict)

    def note(self, launches: Iterable[Launch], machine: Machine) -> None:
        """Take note of where the launches of a run use it."""
        ages = {region.id: age for age, region in enumerate(self.regions)}
        for launch in launches:
            for need in launch.requirements:
                age = ages.get(need.region.id)
                if age is None:
                    continue
                if not age and not self._changed and not self.home and need.privilege.reads:
                    age = len(self.regions)  # of the run before
                rects: Places = {}
                for point, rect in zip(launch.points, need.rects, strict=True):
                    if not rect.is_empty:
                        rects.setdefault(machine.memory_of(point.processor), []).append(rect)
                self._note(age, need.privilege, rects)

    def _note(self, age: int, privilege: Privilege, rects: Places) -> None:
        """Take note of a use: what is written is valid nowhere else, and what is added to nowhere until it is read."""
        left = self._left.setdefault(age, {})
        for memory in rects:
            self._used[memory] = max(self._used.get(memory, 0), age % len(self.regions))
        if privilege.reads:
            for memory, found in rects.items():
                self._read.setdefault(age, {}).setdefault(memory, []).extend(found)
        if privilege.writes or privilege.reduces:
            self._changed.add(age)
            written = union([rect for found in rects.values() for rect in found])
            for memory, held in left.items():
                left[memory] = [rest for rect in held for rest in without(rect, written)]
        for memory, found in rects.items() if not privilege.reduces else ():
            left.setdefault(memory, []).extend(found)

    def homes(self) -> dict[int, Home]:
        """By region where it is valid as a run begins."""
        places: Places = {memory: list(rects) for memory, rects in self.home}
        found: dict[int, Home] = {self.regions[0].id: self.home} if self.home else {}
        for age in range(max(self._read, default=0) + 1):
            if age:
                found[self.regions[age % len(self.regions)].id] = self._kept(places, age)
            if age in self._changed and not self.home:
                places = {}
            for memory, rects in self._left.get(age, {}).items():
                places.setdefault(memory, []).extend(rects)
        if self.home:  # an update writes over the oldest version
            found.setdefault(self.regions[-1].id, self.home)
        return {number: home for number, home in found.items() if home}

    def rings(self, homes: Mapping[int, Home]) -> list[Ring]:
        """The memories where it has several places."""
        if len(self.regions) == 1:
            return []
        for age, region in enumerate(self.regions):
            for memory, _ in homes.get(region.id, ()):
                self._used[memory] = max(self._used.get(memory, 0), age)
        collapsed = max(self._read, default=0) == len(self.regions)
        counts = {memory: len(self.regions) if collapsed else 1 + oldest for memory, oldest in self._used.items()}
        return [Ring(memory, self.regions[:count]) for memory, count in sorted(counts.items()) if count > 1]

    def _kept(self, places: Places, age: int) -> Home:
        """Where something is kept until an age: on the memories that read it from then on, if these have all of it."""
        later = [
            (memory, rect)
            for read, by in self._read.items()
            if read >= age
            for memory, rects in by.items()
            for rect in rects
        ]
        readers = {memory for memory, _ in later} | {memory for memory, _ in self.home}
        kept = {memory: rects for memory, rects in places.items() if memory in readers}
        for found in (kept, places):
            whole = union([rect for rects in found.values() for rect in rects]) if found else None
            if whole is not None and all(not without(rect, whole) for _, rect in later):
                return _frozen(found)
        raise RequestError(
            f"plan: semantics.weights: parts of {self.regions[0].name} are folded by the stage that reads it in a "
            "later run; without a flush an operator at the end of a stage is not split along its sums"
        )


def _frozen(places: Mapping[int, Sequence[IndexSpace]]) -> Home:
    return tuple((memory, tuple(union(rects).rects)) for memory, rects in sorted(places.items()))
