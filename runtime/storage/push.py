"""Pushes: tiles on their way from one memory to another, and the movements that they and their folds make up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from maniple.runtime.storage.copy_kernels import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from maniple.runtime.devices.device import Device
    from maniple.runtime.devices.event import Event
    from maniple.runtime.devices.peer_memory import PeerMemory

__all__: list[str] = []


@dataclass(frozen=True, eq=False, slots=True)
class PeerCopy:
    """The copy of a tile of a device to or from a row of bytes that a rank of the same host has, too.

    Args:
        memories: in which the row may lie.
        start: starts it behind events, and gives its end.
    """

    memories: tuple[PeerMemory, ...]
    start: Callable[[torch.Tensor, Iterable[Event]], Event]


@dataclass(eq=False, slots=True)
class Outgoing:
    """A push that this rank makes, reused whenever its row runs again.

    Args:
        peer: the receiving rank.
        size: bytes of payload.
        pack: copies the tile into fresh contiguous bytes, or gives those that were staged.
        movement: the row that it belongs to.
        stage: for a tile on a device, starts its copy to the host behind events, and gives its end.
        arrival: the other end where that is this rank too.
        across: where both are devices, starts the copy between them and gives its end.
        export: where both are devices of different ranks, what copies the tile to memory that the other can open.
        due: whether it is to go that way as soon as it has a place there.
        lend: where its bytes need not be copied first, gives them, and says from any thread when nobody refers to them.
    """

    peer: int
    size: int
    pack: Callable[[], memoryview]
    movement: Movement
    stage: Callable[[Iterable[Event]], Event] | None = None
    arrival: Incoming | None = None
    across: Callable[[Iterable[Event]], Event] | None = None
    export: PeerCopy | None = None
    due: bool = False
    lend: Callable[[Callable[[], None]], memoryview] | None = None
    ready: bool = False


@dataclass(eq=False, slots=True)
class Incoming:
    """A push that this rank receives, reused whenever its row runs again.

    Args:
        peer: the sending rank.
        size: bytes of payload.
        land: copies received bytes into the destination instance behind events, and gives the end of that.
        movement: the row that it belongs to.
        feeds: the fold inside the movement that waits for it; -1 for none.
        wire: counts what landing writes.
        then: pushes that send on what it brings.
        on_device: whether a stream of a device waits for the events, and not the engine.
        place: the bytes of the destination, where they lie in one stretch of the host's memory: a transport may write a
            payload there itself, and nothing is left to land.
        take: where it is a device's, what copies it from memory of the sender.
    """

    peer: int
    size: int
    land: Callable[[memoryview, Iterable[Event]], Event]
    movement: Movement
    feeds: int = -1
    wire: Wire = field(default_factory=Wire)
    then: list[Outgoing] = field(default_factory=list)
    on_device: bool = False
    released: bool = False
    place: memoryview | None = None
    take: PeerCopy | None = None


@dataclass(eq=False, slots=True)
class LocalFold:
    """A fold inside a collective, at this rank: it runs when `parts` pushes have landed, then frees `then`.

    What it folds may be this rank's part of an exchange: then it `joins` that.
    """

    parts: int
    fold: Callable[[Iterable[Event]], Event]
    then: list[Outgoing] = field(default_factory=list)
    missing: int = 0
    on_device: bool = False
    joins: Exchange | None = None


@dataclass(eq=False, slots=True)
class Movement:
    """This rank's share of one row between memories: a copy has one push, a collective several and folds.

    Args:
        row: the row.
        outgoing: pushes that are ready when the row starts.
        later: pushes that wait for a fold or an arrival of this row.
        incoming: pushes to receive.
        folds: the folds that happen here.
        finished: called once, on the engine's thread, when all of it is done.
        after: what it comes after, beyond what was done when it was started.
        begun_ns: when the first of its copies on a device began, once it is finished; 0 where there was none.
        ended_ns: when the last of them ended.
        exchange: the part of it that a fabric makes, if there is one.
    """

    row: int
    outgoing: list[Outgoing] = field(default_factory=list)
    later: list[Outgoing] = field(default_factory=list)
    incoming: list[Incoming] = field(default_factory=list)
    folds: dict[int, LocalFold] = field(default_factory=dict)
    finished: Callable[[], None] = lambda: None
    left: int = 0
    account: int = 0
    after: tuple[Event, ...] = ()
    begun_ns: int = 0
    ended_ns: int = 0
    exchange: Exchange | None = None


def note(movement: Movement, end: Event) -> None:
    """Note when a copy on a device ran; what ran on the host has no such times."""
    if end.ended_ns:
        movement.begun_ns = min(movement.begun_ns or end.begun_ns, end.begun_ns)
        movement.ended_ns = max(movement.ended_ns, end.ended_ns)


@dataclass(eq=False, slots=True)
class Exchange:
    """The part of a movement that its group makes by one call of a fabric, reused whenever its row runs again.

    Args:
        movement: the row that it belongs to.
        size: bytes that count as sent: those of the pushes that it stands for.
        begin: puts this rank's part together and begins the call; what it is given is told the end, from any thread.
        end: puts what the call has brought where it belongs.
        parts: folds of this rank that it waits for, beside the beginning of its movement.
        then: pushes that send on what it brings.
        came: how many of the things that it waits for have come.
    """

    movement: Movement
    size: int
    begin: Callable[[Callable[[], None]], None]
    end: Callable[[], None]
    parts: int = 0
    then: list[Outgoing] = field(default_factory=list)
    came: int = 0


def in_stream(
    device: Device, movement: Movement, work: Callable[[], None]
) -> tuple[Callable[[Callable[[], None]], None], Callable[[], None]]:
    """Have an exchange made in a stream of a device, which goes on after the call; gives how it begins and ends."""
    made: list[tuple[Event, BaseException | None]] = []

    def begin(ended: Callable[[], None]) -> None:
        event = device.arrivals.submit(work, movement.after)

        def hear(error: BaseException | None) -> None:
            made.append((event, error))
            ended()

        event.then(hear)

    def end() -> None:
        event, error = made.pop()
        if error is not None:
            raise error
        note(movement, event)

    return begin, end
