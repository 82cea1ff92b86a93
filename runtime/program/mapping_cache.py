"""The mapping cache: where tasks run and what they use, kept for launches that differ in nothing but values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from maniple.process.digest import digest
from maniple.runtime.analysis.coherence import serialise
from maniple.runtime.program.body import TaskBinder
from maniple.runtime.program.launch_execution import Calls, Frames
from maniple.runtime.program.operation import comparable
from maniple.runtime.schedule.launch import Launch

if TYPE_CHECKING:
    from collections.abc import Collection

    from maniple.runtime.program.mapping import Mapping
    from maniple.runtime.program.operation import Operation
    from maniple.runtime.schedule.launch import Point, Requirement

__all__: list[str] = []

# A program of ever new launches keeps this many.
KEPT = 256


@dataclass(frozen=True, eq=False, slots=True)
class Mapped:
    """A launch with its mapper's answers.

    Args:
        operation: the launch as the program stated it; without its values where it is kept for others.
        mapping: the answers.
        launch: points and requirements; its bodies take their values from a call.
        parts: the launches that it is cut into where points use the same elements atomically, each with its mapping.
        places: where its tasks run, for messages.
        digest: what ranks compare, but for the values.
    """

    operation: Operation
    mapping: Mapping
    launch: Launch
    parts: tuple[tuple[Launch, Mapping], ...]
    places: str
    digest: bytes

    @classmethod
    def of(
        cls,
        operation: Operation,
        mapping: Mapping,
        points: tuple[Point, ...],
        requirements: tuple[Requirement, ...],
        *,
        checked: bool,
    ) -> Mapped:
        """Put a launch together.

        Args:
            operation: the launch.
            mapping: the mapper's answers.
            points: its tasks.
            requirements: what they use.
            checked: whether bodies are watched.

        Raises:
            RequestError: points interfere that are not both atomic.
        """
        task = operation.task
        bodies = tuple([task.variants[variant] for variant in mapping.variants])
        fields = tuple([len(tiles.columns) * tiles.several for tiles in operation.arguments if tiles is not None])
        binder = TaskBinder(
            task, points, requirements, bodies, Frames([Calls()]), 0, checked, fields, not operation.must_epoch
        )
        launch = Launch(task.name, points, requirements, binder, provenance=operation.provenance)
        parts = tuple(
            (part, replace(mapping, priorities=tuple([mapping.priorities[point] for point in chosen])))
            for part, chosen in serialise(launch)
        )
        answers = (task.version, mapping.variants, mapping.priorities, mapping.layouts, operation.colors)
        places = str([point.processor for point in points])
        told = digest((*answers, places, [*map(comparable, requirements)]))
        return cls(operation.without_values(), mapping, launch, parts, places, told)


class MappedLaunches:
    """The mapped launches whose mapper lets them be kept; partitions and mappers count by identity."""

    def __init__(self) -> None:
        self._kept: dict[object, tuple[object, Mapped]] = {}

    def find(self, operation: Operation, mapper: object) -> Mapped | None:
        """Give what is kept of a launch."""
        found = self._kept.get(_key(operation, mapper))
        return None if found is None else found[1]

    def keep(self, operation: Operation, mapper: object, mapped: Mapped) -> None:
        """Keep a mapped launch for the next time."""
        if len(self._kept) >= KEPT:
            self._kept.clear()
        self._kept[_key(operation, mapper)] = (mapper, mapped)

    def forget(self, regions: Collection[int]) -> None:
        """Forget what names regions that are no more."""
        gone = frozenset(regions)
        for key, (_, mapped) in list(self._kept.items()):
            if any(requirement.region.id in gone for requirement in mapped.launch.requirements):
                del self._kept[key]


def _key(operation: Operation, mapper: object) -> tuple[object, ...]:
    return (operation.key(), operation.provenance, operation.everywhere, id(mapper))
