"""Collectives: the movements of one launch that one all-reduce, reduce-scatter, all-gather or broadcast can do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, final

from maniple.regions.index_space import IndexSpace, crossing, simplest, union
from maniple.regions.movement import Copy, Fold, Movements

Kind = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast"]
Copied = dict[tuple[int, int], list[IndexSpace]]
"""What goes from each source to each target."""


@final
@dataclass(frozen=True, slots=True)
class Collective:
    """Movements that all memories of a group make together, with the folds and copies that they stand for.

    ==============  =================================  ==========================================
    kind            folds                              copies
    ==============  =================================  ==========================================
    all_reduce      parts from every member            every folded box to every other member
    reduce_scatter  parts from every member            none
    all_gather      none                               every source's boxes to every other member
    broadcast       none                               one source's boxes to every other member
    ==============  =================================  ==========================================

    Args:
        kind: which one.
        memories: the group, ascending.
        folds: as they were in the movements.
        copies: as they were in the movements.
    """

    kind: Kind
    memories: tuple[int, ...]
    folds: tuple[Fold, ...]
    copies: tuple[Copy, ...]


def recognise(movements: Movements) -> Collective | None:
    """The collective that all the movements together are, or None.

    Args:
        movements: all that one launch moves of one region.
    """
    if movements.merges:
        return None
    copied: dict[tuple[int, int], list[IndexSpace]] = {}
    for copy in movements.copies:
        copied.setdefault((copy.source, copy.target), []).append(copy.rect)
    kind, group = _reduction(movements.folds, copied) if movements.folds else _distribution(copied)
    if kind is None:
        return None
    return Collective(kind, tuple(sorted(group)), movements.folds, movements.copies)


def recognise_groups(movements: Movements) -> tuple[Movements | Collective, ...]:
    """The movements of groups of memories that have nothing to do with each other, collectives where they are such.

    Of a group are memories between which something moves, and those that get one point. Two groups of two side by side:

        from  to    points    group
        0     1     [0:4]     0, an all-gather of 0 and 1
        1     0     [4:8]     0
        2     3     [8:12]    1, an all-gather of 2 and 3
        3     2     [12:16]   1

    Args:
        movements: all that one launch moves of one region.

    Returns:
        By group, ascending by its lowest memory; all movements in one where they are one collective, or no group is.
    """
    whole = recognise(movements)
    if whole is not None:
        return (whole,)
    parts = () if movements.merges else _groups(movements)
    found = tuple(recognise(part) or part for part in parts)
    return found if len(found) > 1 and any(isinstance(one, Collective) for one in found) else (movements,)


def _groups(movements: Movements) -> list[Movements]:
    """The movements of each group."""
    above: dict[int, int] = {}

    def lowest(memory: int) -> int:
        while above.setdefault(memory, memory) != memory:
            memory = above[memory]
        return memory

    def join(one: int, other: int) -> None:
        first, second = sorted((lowest(one), lowest(other)))
        above[second] = first

    for fold in movements.folds:
        for part in fold.parts:
            join(fold.target, part.memory)
        lowest(fold.target)
    for copy in movements.copies:
        join(copy.source, copy.target)
    if len({lowest(memory) for memory in above}) > 1:  # who gets one point is of one group, whoever it is from
        for one, other in crossing([copy.rect for copy in movements.copies]):
            join(movements.copies[one].target, movements.copies[other].target)
    found: dict[int, tuple[list[Fold], list[Copy]]] = {lowest(memory): ([], []) for memory in sorted(above)}
    for fold in movements.folds:
        found[lowest(fold.target)][0].append(fold)
    for copy in movements.copies:
        found[lowest(copy.target)][1].append(copy)
    return [Movements(tuple(folds), tuple(copies)) for _, (folds, copies) in sorted(found.items())]


def _reduction(
    folds: tuple[Fold, ...], copied: Copied
) -> tuple[Literal["all_reduce", "reduce_scatter"] | None, set[int]]:
    group = {part.memory for part in folds[0].parts}
    targets: dict[int, list[IndexSpace]] = {}
    for fold in folds:
        # A part without contributions is a base from outside of the group of contributors.
        if fold.op != folds[0].op or not all(part.keys for part in fold.parts):
            return None, group
        if {part.memory for part in fold.parts} != group or fold.target not in group:
            return None, group
        targets.setdefault(fold.target, []).append(fold.rect)
    if copied.keys() != (_spread(targets, group) if copied else set()) or _meet([fold.rect for fold in folds]):
        return None, group
    if not copied:
        return ("reduce_scatter" if len(targets) > 1 else None), group
    return ("all_reduce" if _sends(copied, targets) else None), group


def _distribution(copied: Copied) -> tuple[Literal["all_gather", "broadcast"] | None, set[int]]:
    group = {memory for ends in copied for memory in ends}
    sent = {source: rects for (source, _), rects in copied.items()}
    if len(group) < 3 and len(sent) < 2:
        return None, group
    if copied.keys() != _spread(sent, group) or not _sends(copied, sent):
        return None, group
    if _meet([rect for rects in sent.values() for rect in rects]):
        return None, group
    return ("all_gather" if len(sent) > 1 else "broadcast"), group


def _spread(sources: Iterable[int], group: set[int]) -> set[tuple[int, int]]:
    """Who sends to whom where every source sends to all other members."""
    return {(source, member) for source in sources for member in group if member != source}


def _sends(copied: Copied, sent: Mapping[int, list[IndexSpace]]) -> bool:
    """Whether every source sends the same points to all, and none of them twice."""
    whole = {source: _points(rects) for source, rects in sent.items()}
    return all(
        (rects is sent[source] or _points(rects) == whole[source]) and not _meet(rects)
        for (source, _), rects in copied.items()
    )


def _points(rects: list[IndexSpace]) -> IndexSpace:
    return rects[0] if len(rects) == 1 else simplest(union(rects), rects[0].ndim)


def _meet(rects: list[IndexSpace]) -> bool:
    """Whether two of the index spaces share a point."""
    return len(rects) > 1 and next(crossing(rects), None) is not None
