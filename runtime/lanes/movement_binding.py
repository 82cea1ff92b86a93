"""Binding of movements: this rank's share of a row between memories, tied to instances and peers."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from maniple.runtime.devices.event import at_once
from maniple.runtime.storage.copy_kernels import Wire, bind_fold, bind_loan, bind_pack, bind_unpack, stretch
from maniple.runtime.storage.push import Incoming, LocalFold, Movement, Outgoing
from maniple.runtime.storage.staging import bind_across, bind_in, bind_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import torch

    from maniple.regions.index_space import IndexSpace
    from maniple.runtime.analysis.placed_use import Move
    from maniple.runtime.devices.device import Device
    from maniple.runtime.devices.event import Event
    from maniple.runtime.lanes.exchange_binding import ExchangeShare
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.schedule import Piece, Transfer
    from maniple.runtime.storage.memory import Memory

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class Place:
    """A rank among the memories of a machine.

    Args:
        ranks: the rank of every memory.
        devices: for each memory of this rank its device, None for the host's.
        of_gpus: the memories of all ranks that are of GPUs.
    """

    ranks: tuple[int, ...]
    devices: Mapping[int, Device | None]
    of_gpus: frozenset[int] = frozenset()

    @classmethod
    def of(cls, machine: Machine, memories: Mapping[int, Memory]) -> Self:
        """Give the place of the rank that has some memories."""
        ranks = tuple(memory.rank for memory in machine.memories)
        gpus = frozenset(processor.memory for processor in machine.processors if processor.kind == "gpu")
        return cls(ranks, {number: memory.device for number, memory in memories.items()}, gpus)


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
        movement.outgoing = [
            Outgoing(push.peer, push.size, push.pack, movement, lend=push.lend) for push in self.outgoing
        ]
        movement.incoming = [
            Incoming(push.peer, push.size, push.land, movement, place=push.place) for push in self.incoming
        ]
        return movement, movement.outgoing, movement.incoming


def bind_movement(
    row: int,
    transfers: Sequence[Transfer],
    pieces: Sequence[Piece],
    view: Callable[[int, IndexSpace], torch.Tensor],
    memory_of: Callable[[int], int],
    place: Place,
    share: ExchangeShare | None = None,
) -> tuple[Movement, list[Outgoing], list[Incoming]]:
    """Bind one row between memories at one rank.

    Args:
        row: its number.
        transfers: its pushes, in the order that both ends share.
        pieces: the folds inside it.
        view: views the bounds of an index space in an instance of this rank.
        memory_of: the memory of an instance.
        place: this rank.
        share: this rank's share of what a fabric makes of it, if it makes anything.

    Returns:
        The movement, and the pushes to queue on the way out and on the way in, in order.
    """
    movement = Movement(row)
    for number, piece in enumerate(pieces) if share is None else share.pieces.items():
        if piece.memory in place.devices:
            device = place.devices[piece.memory]
            movement.folds[number] = LocalFold(0, _fold(piece, view, device), on_device=device is not None)
    if share is not None:
        share.join(movement, place.ranks, place.devices[share.memory])
    outgoing: list[Outgoing] = []
    incoming: list[Incoming] = []
    arrived: dict[int, Incoming] = {}
    for number, push in enumerate(transfers) if share is None else share.others():
        source, target = memory_of(push.source), memory_of(push.target)
        sent = arrival = None
        if source in place.devices:
            frees = _frees(movement, push, arrived, share)
            sent = _outgoing(movement, push, view, place.ranks[target], place.devices[source], frees)
            if target not in place.of_gpus:
                sent.export = None
        if target in place.devices:
            arrival = arrived[number] = _incoming(movement, push, view, place.ranks[source], place.devices[target])
        if sent is not None and arrival is not None:
            sent.arrival = arrival
            _bind_across(sent, arrival, push, view, (place.devices[source], place.devices[target]))
        elif sent is not None:
            outgoing.append(sent)
        elif arrival is not None:
            incoming.append(arrival)
    return movement, outgoing, incoming


def _fold(
    piece: Piece, view: Callable[[int, IndexSpace], torch.Tensor], device: Device | None
) -> Callable[[Iterable[Event]], Event]:
    """Bind a fold inside a collective."""
    parts = [view(part, piece.rect) for part in piece.parts]
    with nullcontext() if device is None else device.binding():
        fold = bind_fold(piece.op, view(piece.target, piece.rect), parts, piece.rect)
    return at_once(fold) if device is None else lambda events: device.arrivals.submit(fold, events)


def _bind_across(
    sent: Outgoing,
    arrival: Incoming,
    push: Transfer,
    view: Callable[[int, IndexSpace], torch.Tensor],
    ends: tuple[Device | None, Device | None],
) -> None:
    """Bind the copy of a push between two devices of this rank, if both its ends are such."""
    source, target = ends
    if source is not None and target is not None:
        views = view(push.source, push.rect), view(push.target, push.rect)
        sent.across = bind_across(source, views[0], target, views[1], push.rect, arrival.wire)


def _frees(
    movement: Movement, push: Transfer, arrived: Mapping[int, Incoming], share: ExchangeShare | None
) -> list[Outgoing]:
    """Give the pushes that go when what a push sends on is there: as the movement begins, where it sends on nothing."""
    if movement.exchange is not None and share is not None and share.sends(push):
        return movement.exchange.then
    if push.after >= 0:
        return movement.folds[push.after].then
    return arrived[push.follows].then if push.follows in arrived else movement.outgoing


def _outgoing(
    movement: Movement,
    push: Transfer,
    view: Callable[[int, IndexSpace], torch.Tensor],
    peer: int,
    device: Device | None,
    frees: list[Outgoing],
) -> Outgoing:
    tile = view(push.source, push.rect)
    size = push.rect.volume * tile.element_size()
    if device is None:
        lend = bind_loan(tile, push.rect)
        sent = Outgoing(peer, size, bind_pack(tile, push.rect), movement, lend=lend)
    else:
        stage, pack, export = bind_out(device, tile, push.rect)
        sent = Outgoing(peer, size, pack, movement, stage, export=export)
    if frees is not movement.outgoing:
        movement.later.append(sent)
    frees.append(sent)
    return sent


def _incoming(
    movement: Movement,
    push: Transfer,
    view: Callable[[int, IndexSpace], torch.Tensor],
    peer: int,
    device: Device | None,
) -> Incoming:
    tile = view(push.target, push.rect)
    size = push.rect.volume * tile.element_size()
    wire = Wire()
    place = take = None
    if device is None:
        place = stretch(tile, push.rect)
        land = at_once(wire.counting(bind_unpack(tile, push.rect)))
    else:
        land, take = bind_in(device, tile, push.rect, wire)
    on_device = device is not None
    arrival = Incoming(peer, size, land, movement, push.feeds, wire, on_device=on_device, place=place, take=take)
    movement.incoming.append(arrival)
    if push.feeds >= 0:
        movement.folds[push.feeds].parts += 1
    return arrival
