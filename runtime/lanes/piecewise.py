"""Pieces of exchanges: large tiles that are folded where they come go in pieces: one is folded as the next comes.

A collective that goes direct has two phases. Where a tile is folded once all of it is there, links are idle meanwhile,
and a core reads from memory what it could have read from its cache:

    whole        link    ########              ########
                 core            ~~~~~~~~
    four pieces  link    ##1##2##3##4##1##2##3##4
                 core         ~1 ~2 ~3 ~4

Both ends of a push cut it alike, for what decides is its rectangle, and whether the row folds and goes direct, which
all ranks know. Other movement plans say themselves in how many pieces blocks go.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from maniple.regions.rectangle import Rect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.regions.index_space import IndexSpace
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.schedule import Piece, Transfer

__all__: list[str] = []

PIECE_S = 5e-4
"""Seconds of a piece on a link between hosts: ten times what a message costs its two ends."""
LEAST_BYTES, MOST_BYTES = 64 << 10, 1 << 20
"""Bounds of a piece: one of the largest stays in a core's cache until it is folded."""
ENOUGH, MOST_PIECES = 16, 64
"""Pieces of a tile of which none is too large for a cache: what a further one hides is a sixteenth of the tile at most.
And those of any tile."""


def piece_bytes(machine: Machine) -> int:
    """The bytes of a piece on a machine: what its first way between hosts carries in `PIECE_S`, within bounds."""
    first = machine.memories[0]
    away = next((each for each in machine.memories if each.host != first.host), machine.memories[-1])
    way = machine.routes.route(first.id, away.id) if away is not first else ()
    rates = [machine.routes.rate(link)[1] for link in way]
    return max(LEAST_BYTES, min(MOST_BYTES, int(PIECE_S * min(rates, default=1e15))))


def cut(
    transfers: Sequence[Transfer], pieces: Sequence[Piece], itemsize: int, size: int
) -> tuple[tuple[Transfer, ...], tuple[Piece, ...]]:
    """Cut what a rank pushes and folds in a collective that folds and goes direct.

    Args:
        transfers: its pushes.
        pieces: its folds.
        itemsize: bytes of an element.
        size: bytes of a piece at least.

    Returns:
        The same elements, pushed in the same order and folded alike.
    """

    @cache
    def parts_of(space: IndexSpace) -> tuple[IndexSpace, ...]:
        return _parts(space, itemsize, size)

    # A fold may go in pieces where all that it waits for, and all that waits for it, is of the same elements.
    whole = {
        each for push in transfers for each in (push.feeds, push.after) if each >= 0 and push.rect != pieces[each].rect
    }
    folded = [(piece.rect,) if number in whole else parts_of(piece.rect) for number, piece in enumerate(pieces)]
    first = [0]
    for parts in folded:
        first.append(first[-1] + len(parts))

    def fold_of(number: int, part: int) -> int:
        return number if number < 0 else first[number] + (part if number not in whole else 0)

    cut_pushes = (
        replace(push, rect=rect, feeds=fold_of(push.feeds, part), after=fold_of(push.after, part))
        for push in transfers
        for part, rect in enumerate(parts_of(push.rect))
    )
    cut_folds = (replace(piece, rect=rect) for piece, parts in zip(pieces, folded, strict=True) for rect in parts)
    return tuple(cut_pushes), tuple(cut_folds)


def _parts(space: IndexSpace, itemsize: int, least: int) -> tuple[IndexSpace, ...]:
    """The pieces of a tile: along the first axis that has any length, so that each lies in one stretch if it does."""
    if not isinstance(space, Rect):
        return (space,)
    axis = next((axis for axis, side in enumerate(space.shape) if side > 1), -1)
    size = space.volume * itemsize
    wanted = max(min(ENOUGH, size // least), size // MOST_BYTES)
    count = min(MOST_PIECES, wanted, space.shape[axis] if axis >= 0 else 1)
    return space.split(axis, count) if count > 1 else (space,)
