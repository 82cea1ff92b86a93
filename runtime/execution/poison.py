"""Poison: which elements of which regions a failed task was to write, and has not. Pure.

A launch whose body raised has written something, or nothing, or half of it. What it was to write is poisoned by its
failure; so is what a task was to write that reads poison, for it does not run, or runs on values that mean nothing. A
task that writes without reading heals what it writes:

    launch                        x[0:4]     x[4:8]     y
    ============================  =========  =========  =========
    bad(ReadWrite x[0:4]) raises  by bad     .          .
    add(Read x[0:4], ReadWrite y) by bad     .          by bad
    fill(x, 0)                    .          .          by bad

So it follows from the launches in program order and from which tasks failed, wherever and whenever they ran: ranks that
agree on the failures agree on the poison. Poison travels along data as it does along events in Realm (Treichler, Bauer
and Aiken, "Realm: An Event-Based Low-Level Runtime for Distributed Memory Architectures", PACT 2014).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from maniple.regions.index_space import intersect, meets, simplest, without
from maniple.regions.privilege import Coherence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.regions.index_space import IndexSpace
    from maniple.runtime.schedule.launch import Launch, Point

__all__: list[str] = []

Place = tuple[int, int, tuple[int, ...], int]
"""Where a task stands in the program: the number of its launch, or of its run of a trace and its launch there; its
point, and which replica of that it is. Places compare as the program orders them."""


def may_be_awaited(launch: Launch) -> bool:
    """Say whether tasks may wait for one of a launch by means of their own, and so for ever for one that failed."""
    return any(requirement.coherence is Coherence.SIMULTANEOUS for requirement in launch.requirements)


def place_of(serial: int, index: int, point: Point) -> Place:
    """Give the place of a task.

    Args:
        serial: the number of its launch, or of the run of a trace.
        index: the launch's place in that run; else 0.
        point: the task.
    """
    return serial, index, point.color, point.replica


@dataclass(frozen=True, slots=True, order=True)
class Failure:
    """A task whose body raised; equal on all ranks.

    Args:
        place: where the task stands in the program.
        text: what messages say of it.
        rank: where it ran.
    """

    place: Place
    text: str = field(compare=False)
    rank: int = field(compare=False)


Spots = tuple[tuple["IndexSpace", Failure], ...]


@dataclass(frozen=True, slots=True)
class Poison:
    """What is poisoned, and by which failure.

    Args:
        spots: by region, elements that share none with each other.
    """

    spots: Mapping[int, Spots] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.spots)

    def of(self, region: int, space: IndexSpace) -> tuple[IndexSpace, Failure] | None:
        """Give what of some elements is poisoned, by the failure that comes first in the program."""
        found = [(failure, where) for where, failure in self.spots.get(region, ()) if meets(where, space)]
        if not found:
            return None
        failure, where = min(found, key=lambda each: each[0])
        return simplest(intersect(where, space), space.ndim), failure

    def after(self, launch: Launch, failed: Mapping[Point, Failure]) -> tuple[Poison, dict[Point, Failure]]:
        """Give the poison after a launch, and the tasks of it that a failure has reached.

        Args:
            launch: the launch.
            failed: the tasks of it whose bodies raised. For one that reads poison, what poisoned that is the reason.
        """
        if not self.spots and not failed:
            return self, {}
        reached = self._find_failures(launch, failed)
        spots = dict(self.spots)
        for number, point in enumerate(launch.points):
            for requirement in launch.requirements:
                writes = requirement.privilege.writes and not requirement.privilege.reads
                if writes and point not in reached and requirement.region.id in spots:
                    _take(spots, requirement.region.id, requirement.rects[number])
        for number, point in enumerate(launch.points):
            if point not in reached:
                continue
            for requirement in launch.requirements:
                if requirement.privilege.writes or requirement.privilege.reduces:
                    keep = requirement.privilege.reduces
                    _put(spots, requirement.region.id, requirement.rects[number], reached[point], keep=keep)
        return Poison(spots), reached

    def _find_failures(self, launch: Launch, failed: Mapping[Point, Failure]) -> dict[Point, Failure]:
        """Give the tasks of a launch that fail or read poison, each with the first failure that it goes back to."""
        reached: dict[Point, Failure] = {}
        for number, point in enumerate(launch.points):
            read = [
                found[1]
                for requirement in launch.requirements
                if requirement.privilege.reads
                and requirement.region.id in self.spots
                and (found := self.of(requirement.region.id, requirement.rects[number])) is not None
            ]
            if read:
                reached[point] = min(read)
            elif point in failed:
                reached[point] = failed[point]
        return reached

    def without(self, region: int) -> Poison:
        """Forget a region."""
        return Poison({number: spots for number, spots in self.spots.items() if number != region})


def _take(spots: dict[int, Spots], region: int, space: IndexSpace) -> None:
    """Heal elements."""
    left = tuple([(rest, failure) for where, failure in spots.get(region, ()) for rest in without(where, space)])
    if left:
        spots[region] = left
    else:
        spots.pop(region, None)


def _put(spots: dict[int, Spots], region: int, space: IndexSpace, failure: Failure, *, keep: bool) -> None:
    """Poison elements.

    Args:
        spots: changed.
        region: whose.
        space: the elements.
        failure: by what.
        keep: whether what is poisoned already stays so by what did it.
    """
    rests: tuple[IndexSpace, ...] = () if space.is_empty else (space,)
    if keep:
        for where, _ in spots.get(region, ()):
            rests = tuple([part for rest in rests for part in without(rest, where)])
    else:
        _take(spots, region, space)
    if rests:
        spots[region] = (*spots.get(region, ()), *((rest, failure) for rest in rests))


def reads_poison(poison: Poison, launches: Sequence[Launch]) -> tuple[Launch, int, IndexSpace, Failure] | None:
    """Give the first launch of a sequence that would read poison.

    Returns:
        The launch, which of its requirements, the elements, and the failure; None where none would.
    """
    for launch in launches:
        if not poison:
            return None
        for number, requirement in enumerate(launch.requirements):
            if not requirement.privilege.reads or requirement.region.id not in poison.spots:
                continue
            for space in requirement.rects:
                found = poison.of(requirement.region.id, space)
                if found is not None:
                    return launch, number, *found
        poison, _ = poison.after(launch, {})
    return None
