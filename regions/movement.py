"""Movements: the uses that tasks make of a region, and the folds and copies that bring values to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from maniple.regions.privilege import Privilege, ReductionOp
from maniple.regions.rectangle import Rect

MemoryId = int
Key = tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class Use:
    """One point task's use of a region, in one memory.

    Args:
        memory: where the task's instance is.
        rect: the points that it uses.
        privilege: what it does with them.
        key: the point task, such as (launch, point). Replicas of one point share its key; no two points do.
    """

    memory: MemoryId
    rect: Rect
    privilege: Privilege
    key: Key = ()


@final
@dataclass(frozen=True, slots=True)
class Contribution:
    """Values that a task has reduced into an instance of its own and that nothing has folded yet.

    Args:
        key: the point task that made it.
        memory: where it is.
        rect: its points that are still to be folded.
        op: the operation that folds it.
    """

    key: Key
    memory: MemoryId
    rect: Rect
    op: ReductionOp


@final
@dataclass(frozen=True, slots=True)
class Part:
    """What one memory adds to a fold: folded there first, so that one value per point leaves it.

    Args:
        memory: where the part is made.
        keys: the contributions that it folds, in this order.
        base: whether the value from before the reductions is folded in too, before the contributions.
    """

    memory: MemoryId
    keys: tuple[Key, ...]
    base: bool


@final
@dataclass(frozen=True, slots=True)
class Fold:
    """The target's value becomes its parts folded in the given order.

    Args:
        rect: the points.
        target: the memory whose value is replaced.
        op: the operation.
        parts: one per memory that adds something, ascending by memory.
    """

    rect: Rect
    target: MemoryId
    op: ReductionOp
    parts: tuple[Part, ...]


@final
@dataclass(frozen=True, slots=True)
class Copy:
    """The target's value becomes the source's.

    Args:
        rect: the points.
        source: a memory whose value is valid there.
        target: a memory whose value is not.
    """

    rect: Rect
    source: MemoryId
    target: MemoryId


@final
@dataclass(frozen=True, slots=True)
class Movements:
    """What must move before one launch may use one region.

    Args:
        folds: done first; no two change the same point of one memory.
        copies: done after the folds, since one may start from a fold's target.
    """

    folds: tuple[Fold, ...] = ()
    copies: tuple[Copy, ...] = ()

    def volume(self) -> int:
        """The number of elements that leave a memory for another."""
        folded = 0
        for fold in self.folds:
            folded += fold.rect.volume * len([part for part in fold.parts if part.memory != fold.target])
        return folded + sum([copy.rect.volume for copy in self.copies])
