"""Coherence: launches whose points may interfere, as launches whose points do not, one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from maniple.process.error import RequestError
from maniple.regions.index_space import crossing, intersect
from maniple.regions.privilege import Coherence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from maniple.runtime.schedule.launch import Launch, Requirement

__all__: list[str] = []


def serialise(launch: Launch) -> tuple[tuple[Launch, tuple[int, ...]], ...]:
    """Cut a launch with atomic requirements into launches whose points do not interfere.

    Each point goes behind the earlier ones that it interferes with, and no further: any order would be atomic, this one
    gives the same results each time.

    ::

        point     0      1      2      3
        uses   [0:2]  [1:3]  [4:6]  [2:5]
        launch    0      1      0      2

    Returns:
        The launches in order, each with the points of the whole that it has.

    Raises:
        RequestError: points interfere through requirements that are not both atomic.
    """
    everything = ((launch, tuple(range(len(launch.points)))),)
    if all(requirement.coherence is not Coherence.ATOMIC for requirement in launch.requirements):
        return everything
    earlier: list[list[int]] = [[] for _ in launch.points]
    for one, other, first, second in _interfering(launch.requirements):
        if first == second or one.coherence is not Coherence.ATOMIC or other.coherence is not Coherence.ATOMIC:
            both = intersect(one.rects[first], other.rects[second])
            points = f"points {launch.points[first]} and {launch.points[second]}"
            msg = (
                f"launch {launch.name}: {'two arguments' if first == second else points} both use "
                f"{one.region.name}{both}, as {one.coherence.value} {one.privilege} and {other.coherence.value} "
                f"{other.privilege}; ask for atomic coherence of both points, or make them disjoint"
            )
            raise RequestError(msg)
        earlier[max(first, second)].append(min(first, second))
    turns: list[int] = []
    for before in earlier:
        turns.append(max((turns[point] + 1 for point in before), default=0))
    if not any(turns):
        return everything
    return tuple(_part(launch, [p for p, own in enumerate(turns) if own == turn]) for turn in range(max(turns) + 1))


def _interfering(requirements: Sequence[Requirement]) -> Iterator[tuple[Requirement, Requirement, int, int]]:
    """Every two uses of different points that may not run at once: their requirements, and the points."""
    for number, one in enumerate(requirements):
        for other in requirements[number:]:
            alike = one.privilege == other.privilege and not one.privilege.writes
            together = one.coherence is other.coherence is Coherence.SIMULTANEOUS
            if one.region.id != other.region.id or alike or together:
                continue
            mine = [(point, space) for point, space in enumerate(one.rects) if not space.is_empty]
            theirs = [(point, space) for point, space in enumerate(other.rects) if not space.is_empty]
            both = mine if one is other else mine + theirs
            for a, b in crossing([space for _, space in both]):
                if one is other or a < len(mine) <= b:
                    yield one, other, both[a][0], both[b][0]


def _part(launch: Launch, points: Sequence[int]) -> tuple[Launch, tuple[int, ...]]:
    """A launch of some points of another."""
    binder = launch.binder

    def bind(point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        if binder is None:
            msg = f"launch {launch.name} has no body: it was made for planning"
            raise TypeError(msg)
        return binder(points[point], views, cores)

    requirements = tuple(
        replace(requirement, rects=tuple(requirement.rects[point] for point in points))
        for requirement in launch.requirements
    )
    some = replace(
        launch,
        points=tuple(launch.points[point] for point in points),
        requirements=requirements,
        binder=None if binder is None else bind,
        flops=tuple(launch.flops[point] for point in points) if launch.flops else (),
    )
    return some, tuple(points)
