"""Launches after mapping: which tasks run where, and which rectangles of which regions each one uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from maniple.regions.privilege import Coherence

if TYPE_CHECKING:
    import torch

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.privilege import Privilege

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class Point:
    """One task of a launch, placed on a processor.

    Args:
        color: the point of the launch domain that this task is.
        processor: the processor that runs it.
        replica: 0, or the number of this recomputation of the same point on a further processor.
    """

    color: tuple[int, ...]
    processor: int
    replica: int = 0

    def __str__(self) -> str:
        """Print as `[0,1]@p2`, with `'1` after it for a replica."""
        mark = f"'{self.replica}" if self.replica else ""
        return f"[{','.join(map(str, self.color))}]@p{self.processor}{mark}"


@dataclass(frozen=True, slots=True)
class Requirement:
    """How one launch uses one region: a privilege, and the rectangle that each point uses.

    Args:
        region: the logical region.
        privilege: read, write-discard, read-write or reduce.
        rects: the elements that each point uses, dense or sparse, none where it does not use the region; never changed.
        coherence: how tasks that use the same elements are ordered.
        fills: whether every task gives all its elements one value, which an instance may also get when it is made.
    """

    region: LogicalRegion
    privilege: Privilege
    rects: Sequence[IndexSpace]
    coherence: Coherence = Coherence.EXCLUSIVE
    fills: bool = False


class Binder(Protocol):
    """Turns a task's body into a call without arguments over instances that stay where they are."""

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind the body of one point.

        Args:
            point: index of the point in the launch.
            views: for each requirement the tensor that views its rectangle, None where the point does not use it.
            cores: how many cores the processor owns.
        """
        ...


@runtime_checkable
class Accumulating(Binder, Protocol):
    """A binder whose bodies can add to what a view holds: to an earlier contribution, or to a value to change."""

    def adds_in_place(self, adding: frozenset[int]) -> bool:
        """Say whether they need no scratch for it.

        Args:
            adding: the requirements, by number, to whose views they add.
        """
        ...

    def bind_adding(
        self, point: int, views: Sequence[torch.Tensor | None], cores: int, adding: frozenset[int]
    ) -> Callable[[], object]:
        """Bind the body of one point that adds in place; the arguments are those of a call and of `adds_in_place`."""
        ...


@dataclass(frozen=True, slots=True)
class Launch:
    """A mapped index launch: one operation that stands for a task per point (a single launch has one point).

    Args:
        name: what errors, schedules and timelines call it, such as `conv2d.forward`.
        points: the tasks, replicas of one point next to each other, never changed.
        requirements: how the tasks use regions.
        binder: gives the body; None for a launch that is only planned or simulated.
        flops: floating-point operations of each point, for cost models.
        kind: the operator and what is computed of it, such as `conv2d.forward`, for cost models.
        provenance: the source line that launched it, or the operator it stands for.
        in_turn: whether a processor runs its tasks after those of earlier such launches, and not by who is ready first.
        lag: how many runs ago what it works on began; it does nothing in a run before which there were fewer.
        multiplies_in: the type in which a GPU multiplies, where it is not that of the values.
        port: ``in`` where it brings a value of the program's, ``out`` where it gives it one; "" where it does neither.
    """

    name: str
    points: Sequence[Point]
    requirements: tuple[Requirement, ...]
    binder: Binder | None = field(default=None, compare=False)
    flops: tuple[float, ...] = ()
    kind: str = ""
    provenance: str = ""
    in_turn: bool = False
    lag: int = 0
    multiplies_in: str = ""
    port: str = ""

    def label(self, point: int) -> str:
        """Name one of its tasks, such as `conv2d.forward[1,0]@p1`."""
        return f"{self.name}{self.points[point]}"
