"""Movement plans: the folds, copies and merges of one launch while they are collected, and what each choice is."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from maniple.regions.cell import Cell, Pending
from maniple.regions.index_space import IndexSpace, as_one, by_place, part
from maniple.regions.movement import Copy, Fold, Key, Merge, Movements, Part
from maniple.regions.privilege import ReductionOp

Near = Callable[[int, int], int]

# As many contributions of one memory wait for a point; one more, and they are merged.
MOST_PENDING = 16


@final
class MovementPlan:
    """The folds and copies of one launch while they are collected."""

    def __init__(self, near: Near | None) -> None:
        self._near = near
        self._copies: dict[tuple[int, int], list[IndexSpace]] = {}
        self._folds: dict[tuple[int, int | None, tuple[int, ...]], list[IndexSpace]] = {}
        self._merges: dict[tuple[int, tuple[Key, ...], ReductionOp], list[IndexSpace]] = {}
        self._pending: dict[tuple[int, ...], Pending] = {}

    def read(self, rect: IndexSpace, memories: tuple[int, ...], cell: Cell) -> bool:
        """Bring one box of a cell to the memories that need it; whether anything has to move."""
        if cell.pending:
            self._fold(rect, memories, cell)
            return True
        moved = False
        for rank, target in enumerate(memories):
            if target not in cell.holders:
                sources = self._nearest(target, cell.holders)
                self._copies.setdefault((sources[rank % len(sources)], target), []).append(rect)
                moved = True
        return moved

    def _nearest(self, target: int, holders: tuple[int, ...]) -> tuple[int, ...]:
        if self._near is None or len(holders) == 1:
            return holders
        distances = [self._near(target, holder) for holder in holders]
        least = min(distances)
        return tuple([holder for holder, distance in zip(holders, distances, strict=True) if distance == least])

    def merge(self, rect: IndexSpace, memory: int, waiting: Pending) -> Pending:
        """Merge what waits in one memory if it is much; the contributions that are left."""
        own = [each for each in waiting if each[1].memory == memory]
        if len(own) < MOST_PENDING:
            return waiting
        names = (memory, tuple([entry.key for _, entry in own]), own[0][1].op)
        self._merges.setdefault(names, []).append(rect)
        return tuple([each for each in waiting if each[1].memory != memory or each is own[0]])

    def _fold(self, rect: IndexSpace, memories: tuple[int, ...], cell: Cell) -> None:
        contributing = {entry.memory for _, entry in cell.pending}
        # Each choice costs as little as any: an owner that contributes keeps its part, and one that holds the base
        # keeps that.
        owners = (
            [memory for memory in memories if memory in contributing]
            or [memory for memory in memories if memory in cell.holders]
            or list(memories)
        )
        numbers = tuple([number for number, _ in cell.pending])
        self._pending[numbers] = cell.pending
        for owner, block in zip(owners, part(rect, len(owners)), strict=False):
            base = self._base(owner, contributing, cell.holders)
            self._folds.setdefault((owner, base, numbers), []).append(block)
            for target in memories:
                if target != owner:
                    self._copies.setdefault((owner, target), []).append(block)

    def _base(self, owner: int, contributing: set[int], holders: tuple[int, ...]) -> int | None:
        if not holders or owner in holders:
            return owner if holders else None
        near = self._near
        return min(holders, key=lambda m: (m not in contributing, 0 if near is None else near(owner, m), m))

    def movements(self) -> Movements:
        """What was collected, one fold or copy for all that is alike, by ascending place and then memory."""
        folds: list[Fold] = []
        parts: dict[tuple[int | None, tuple[int, ...]], tuple[Part, ...]] = {}
        for (target, base, numbers), rects in self._folds.items():
            pending = self._pending[numbers]
            if (base, numbers) not in parts:
                parts[base, numbers] = _parts(pending, base)
            folds.append(Fold(as_one(rects), target, pending[0][1].op, parts[base, numbers]))
        folds.sort(key=lambda fold: (by_place(fold.rect), fold.target))
        copies = [Copy(as_one(rects), *ends) for ends, rects in self._copies.items()]
        copies.sort(key=lambda copy: (by_place(copy.rect), copy.source, copy.target))
        merges = [Merge(as_one(rects), memory, op, keys) for (memory, keys, op), rects in self._merges.items()]
        merges.sort(key=lambda merge: (by_place(merge.rect), merge.memory))
        return Movements(tuple(folds), tuple(copies), tuple(merges))


def _parts(pending: Pending, base: int | None) -> tuple[Part, ...]:
    keys: dict[int, list[Key]] = {} if base is None else {base: []}
    for _, entry in pending:
        keys.setdefault(entry.memory, []).append(entry.key)
    return tuple(Part(memory, tuple(keys[memory]), memory == base) for memory in sorted(keys))
