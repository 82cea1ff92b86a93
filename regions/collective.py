"""Collectives: the movements of one launch that one all-reduce, reduce-scatter, all-gather or broadcast can do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, final

from maniple.regions.index_space import IndexSpace, RectSet, union
from maniple.regions.movement import Copy, Fold, Movements

Kind = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast"]


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
    copied = _copied(movements.copies)
    if copied is None:
        return None
    kind, group = _reduction(movements.folds, copied) if movements.folds else _distribution(copied)
    if kind is None:
        return None
    return Collective(kind, tuple(sorted(group)), movements.folds, movements.copies)


def _copied(copies: Iterable[Copy]) -> dict[tuple[int, int], RectSet] | None:
    """The points that go from each source to each target; None if any goes twice or nowhere."""
    rects: dict[tuple[int, int], list[IndexSpace]] = {}
    for copy in copies:
        rects.setdefault((copy.source, copy.target), []).append(copy.rect)
    result: dict[tuple[int, int], RectSet] = {}
    for (source, target), boxes in rects.items():
        points = _once(boxes)
        if points is None or source == target:
            return None
        result[source, target] = points
    return result


def _once(rects: list[IndexSpace]) -> RectSet | None:
    """The points of index spaces that share none, or None if they do."""
    points = union(rects)
    return points if points.volume == sum([rect.volume for rect in rects]) else None


def _reduction(
    folds: tuple[Fold, ...], copied: dict[tuple[int, int], RectSet]
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
    if _once([fold.rect for fold in folds]) is None:
        return None, group
    if not copied:
        return ("reduce_scatter" if len(targets) > 1 else None), group
    folded = {target: union(rects) for target, rects in targets.items()}
    wanted = {(target, member): folded[target] for target in folded for member in group if member != target}
    return ("all_reduce" if copied == wanted else None), group


def _distribution(
    copied: dict[tuple[int, int], RectSet],
) -> tuple[Literal["all_gather", "broadcast"] | None, set[int]]:
    sent: dict[int, RectSet] = {}
    for (source, _), points in copied.items():
        sent.setdefault(source, points)
    group = {memory for ends in copied for memory in ends}
    wanted = {(source, member): sent[source] for source in sent for member in group if member != source}
    if copied != wanted or _once(list(sent.values())) is None:
        return None, group
    if len(sent) > 1:
        return "all_gather", group
    return ("broadcast" if len(group) > 2 else None), group
