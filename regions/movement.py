"""Movements: the uses that tasks make of a region, and the folds and copies that bring values to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from maniple.regions.index_space import IndexSpace
from maniple.regions.privilege import Privilege, ReductionOp

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
        shared: whether other tasks in the same memory may use the points meanwhile: simultaneous coherence, under which
            the tasks themselves keep order.
    """

    memory: MemoryId
    rect: IndexSpace
    privilege: Privilege
    key: Key = ()
    shared: bool = False


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
    rect: IndexSpace
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

    rect: IndexSpace
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

    rect: IndexSpace
    source: MemoryId
    target: MemoryId


@final
@dataclass(frozen=True, slots=True)
class Merge:
    """Contributions of one memory become one, folded into the first in the given order, and still wait.

    Nothing leaves the memory. The fold that comes later takes what a memory has in program order, from the left, so
    folding the first of them early changes no bit of its result.

    Args:
        rect: the points.
        memory: where they are.
        op: the operation.
        keys: the contributions; the first is the one that is left.
    """

    rect: IndexSpace
    memory: MemoryId
    op: ReductionOp
    keys: tuple[Key, ...]


@final
@dataclass(frozen=True, slots=True)
class Movements:
    """What must move before one launch may use one region.

    Args:
        folds: done first; no two change the same point of one memory.
        copies: done after the folds, since one may start from a fold's target.
        merges: contributions that waited in great number, made fewer; they concern points that nothing else here does.
    """

    folds: tuple[Fold, ...] = ()
    copies: tuple[Copy, ...] = ()
    merges: tuple[Merge, ...] = ()

    def volume(self) -> int:
        """The number of elements that leave a memory for another."""
        folded = 0
        for fold in self.folds:
            folded += fold.rect.volume * len([part for part in fold.parts if part.memory != fold.target])
        return folded + sum([copy.rect.volume for copy in self.copies])
