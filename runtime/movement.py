"""Binding of movements: this rank's share of a row between memories, tied to instances and peers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniple.runtime.engine import Incoming, LocalFold, Movement, Outgoing
from maniple.runtime.kernels import bind_fold, bind_pack, bind_unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from maniple.regions.index_space import IndexSpace
    from maniple.runtime.schedule import Piece, Transfer
    from maniple.runtime.use import Move

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class BoundMove:
    """This rank's share of a movement, tied to storage, to be made again and again.

    Args:
        move: the movement; told by identity, so it is kept.
        memories: all that take part.
        storage: what it was tied to; None where this rank takes no part, or its share cannot be used again.
        outgoing: pushes on the way out.
        incoming: pushes on the way in.
    """

    move: Move
    memories: frozenset[int]
    storage: torch.Tensor | None
    outgoing: tuple[Outgoing, ...] = ()
    incoming: tuple[Incoming, ...] = ()

    def again(self, row: int) -> tuple[Movement, list[Outgoing], list[Incoming]]:
        """Give a share of its own to another run."""
        movement = Movement(row)
        movement.outgoing = [Outgoing(push.peer, push.size, push.pack, movement) for push in self.outgoing]
        movement.incoming = [Incoming(push.peer, push.size, push.land, movement) for push in self.incoming]
        return movement, movement.outgoing, movement.incoming


def bind_movement(
    row: int,
    transfers: Sequence[Transfer],
    pieces: Sequence[Piece],
    view: Callable[[int, IndexSpace], torch.Tensor],
    memory_of: Callable[[int], int],
    here: int,
) -> tuple[Movement, list[Outgoing], list[Incoming]]:
    """Bind one row between memories at one rank.

    Args:
        row: its number.
        transfers: its pushes, in the order that both ends share.
        pieces: the folds inside it.
        view: views the bounds of an index space in an instance of this rank.
        memory_of: the memory of an instance.
        here: this rank's memory.

    Returns:
        The movement, and the pushes to queue on the way out and on the way in, in order.
    """
    movement = Movement(row)
    for number, piece in enumerate(pieces):
        if piece.memory == here:
            parts = [view(part, piece.rect) for part in piece.parts]
            fold = bind_fold(piece.op, view(piece.target, piece.rect), parts, piece.rect)
            movement.folds[number] = LocalFold(0, fold)
    outgoing: list[Outgoing] = []
    incoming: list[Incoming] = []
    for push in transfers:
        source, target = memory_of(push.source), memory_of(push.target)
        if source == here:
            tile = view(push.source, push.rect)
            size = push.rect.volume * tile.element_size()
            sent = Outgoing(target, size, bind_pack(tile, push.rect), movement)
            outgoing.append(sent)
            if push.after >= 0:
                movement.later.append(sent)
                movement.folds[push.after].then.append(sent)
            else:
                movement.outgoing.append(sent)
        elif target == here:
            tile = view(push.target, push.rect)
            size = push.rect.volume * tile.element_size()
            arrival = Incoming(source, size, bind_unpack(tile, push.rect), movement, push.feeds)
            incoming.append(arrival)
            movement.incoming.append(arrival)
            if push.feeds >= 0:
                movement.folds[push.feeds].parts += 1
    return movement, outgoing, incoming
