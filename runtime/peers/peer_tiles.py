"""Peer tiles: this rank's ends of the rings through which its devices send tiles to those of other ranks of its host.

A sender has one ring for each device and kind of memory that a peer's tiles need. A tile gets a place there in the
order in which tiles are sent, is copied into it, and once that copy has ended, which the sender hears, a *ticket* goes
to the receiver in the header of a message. The receiver copies the tile out of its place, and once that has ended gives
the place back, by a counter that rides on every message to the sender:

    rank 0                                          rank 1
    takes a place, copies, hears that it ended
    ticket: segment 0, at 0, 4096 bytes, handle     opens segment 0, copies
    ticket: segment 0, at 4096, 512 bytes           copies
                                                    hears that both have ended: 2 places
    takes both back

A tile that is larger than its ring gets a larger one once that is empty; its first ticket says which it replaces. A
rank that is gone leaves nothing that others wait for: what it said was there is there, and for the rest they wait as
they do for a message.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, final

from maniple.process.error import RunError
from maniple.runtime.machine.peer_link import RING_BYTES
from maniple.runtime.peers.tile_ring import TileRing, Untold

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from maniple.runtime.devices.event import Event
    from maniple.runtime.devices.peer_memory import PeerMemory, Segment
    from maniple.runtime.peers.reach import Reach
    from maniple.runtime.storage.push import Incoming, Outgoing

__all__: list[str] = []

TICKET = struct.Struct("<3Q")  # segment, where the tile begins, its bytes
_FIRST = struct.Struct("<3Q")  # and behind the first of a segment: its bytes, whether of a device, one replaced + 1
_MOST = 1 << 12  # bytes of a handle at most


@final
@dataclass(eq=False, slots=True)
class _Ring:
    """A ring that this rank sends through.

    Args:
        number: of the segment, among those of the peer.
        segment: exported.
        places: in it.
        first: what the first ticket says beside.
        before: the ring that it replaces, until the peer has closed that.
    """

    number: int
    segment: Segment
    places: TileRing
    first: bytes
    before: Segment | None


@final
@dataclass(eq=False, slots=True)
class _Sending:
    """What this rank sends to a peer.

    Args:
        waiting: tiles that have no place yet, in the order in which they are sent.
        rings: by memory.
        taken: the ring of every place that is taken, in order.
        tickets: of tiles that have a place and were not sent, in order.
        made: how many segments there were.
        given: how many places the peer has given back.
    """

    waiting: deque[Outgoing] = field(default_factory=deque)
    rings: dict[PeerMemory, _Ring] = field(default_factory=dict)
    taken: deque[_Ring] = field(default_factory=deque)
    tickets: deque[bytes] = field(default_factory=deque)
    made: int = 0
    given: int = 0


@final
@dataclass(eq=False, slots=True)
class _Known:
    """A segment of a peer.

    Args:
        size: its bytes.
        of_device: whether it is memory of a device.
        handle: what opens it.
        opened: by this rank's memory.
        untold: its places that are free again, and not told of.
    """

    size: int
    of_device: bool
    handle: bytes
    opened: dict[PeerMemory, Segment]
    untold: Untold


@final
@dataclass(eq=False, slots=True)
class Landing:
    """A tile that is being copied out of its place.

    Args:
        segment: of the place.
        start: where it begins.
        size: bytes of the tile.
        over: whether the copy has ended.
    """

    segment: _Known
    start: int
    size: int
    over: bool = False


@final
@dataclass(eq=False, slots=True)
class _Receiving:
    """What a peer sends to this rank.

    Args:
        segments: by number.
        landing: tiles whose places were not given back, in the order in which they came.
        given: how many places were.
    """

    segments: dict[int, _Known] = field(default_factory=dict)
    landing: deque[Landing] = field(default_factory=deque)
    given: int = 0


class Placed(NamedTuple):
    """A tile that has a place.

    Args:
        push: the tile.
        end: of the copy to the place.
    """

    push: Outgoing
    end: Event


@final
class PeerTiles:
    """One rank's ends of all rings; used by one thread.

    Args:
        reaches: by peer, what it can open; of those that can open nothing, nothing is sent this way.
    """

    def __init__(self, reaches: Mapping[int, Reach]) -> None:
        self._reaches = dict(reaches)
        self._sending = {peer: _Sending() for peer in reaches}
        self._receiving = {peer: _Receiving() for peer in reaches}

    def carries(self, push: Outgoing) -> bool:
        """Say whether a push goes this way."""
        reach = self._reaches.get(push.peer)
        return push.export is not None and reach is not None and reach.of_device(push.size) is not None

    def line_up(self, push: Outgoing) -> None:
        """Take in a push, in the order in which its peer awaits them."""
        self._sending[push.peer].waiting.append(push)

    def place(self, peer: int) -> Iterator[Placed]:
        """Give places to tiles whose turn it is, that are due, and for which there is room; copies begin.

        Raises:
            RunError: a segment cannot be made.
        """
        sending = self._sending.get(peer)
        while sending is not None and sending.waiting and sending.waiting[0].due:
            push = sending.waiting[0]
            row = self._take(sending, self._reaches[peer], push)
            if row is None or push.export is None:
                return
            sending.waiting.popleft()
            push.due = False
            yield Placed(push, push.export.start(row, push.movement.after))

    def ticket(self, peer: int) -> bytes:
        """Give what tells the peer of the next tile that has a place, whose copy into it has ended."""
        return self._sending[peer].tickets.popleft()

    def take_back(self, peer: int, given: int) -> None:
        """Take note of how many places a peer has given back in all.

        Raises:
            RunError: more than were taken.
        """
        sending = self._sending.get(peer)
        if sending is None:
            return
        if not sending.given <= given <= sending.given + len(sending.taken) - len(sending.tickets):
            raise RunError(f"rank {peer} gave back {given - sending.given} places of tiles that it was not sent")
        for _ in range(given - sending.given):
            ring = sending.taken.popleft()
            ring.places.give()
            if ring.before is not None:  # the peer has closed it before it took a tile of the one after
                ring.before.close()
                ring.before = None
        sending.given = given

    def given(self, peer: int) -> int:
        """Count the places that this rank has given back to a peer, and take note that the peer is told."""
        receiving = self._receiving.get(peer)
        if receiving is None:
            return 0
        for segment in receiving.segments.values():
            segment.untold.clear()
        return receiving.given

    def land(self, arrival: Incoming, ticket: bytes) -> tuple[Landing, Event]:
        """Begin to copy a tile that has come out of its place; gives what `landed` is told once that has ended.

        Raises:
            RunError: there is no such place, or it cannot be opened.
        """
        peer, take = arrival.peer, arrival.take
        receiving = self._receiving.get(peer)
        if receiving is None or take is None:
            raise RunError(f"rank {peer} sent a tile through memory that this rank cannot open")
        if len(ticket) < TICKET.size:
            raise RunError(f"rank {peer}: expected a ticket of {TICKET.size} bytes, got {len(ticket)}")
        number, start, size = TICKET.unpack_from(ticket)
        if len(ticket) > TICKET.size:
            self._learn(receiving, peer, number, ticket[TICKET.size :])
        segment = receiving.segments.get(number)
        if segment is None or start + size > segment.size or size != arrival.size:
            raise RunError(
                f"rank {peer} sent a tile of {size} bytes at {start} of segment {number}; expected {arrival.size} "
                f"bytes of a segment of {0 if segment is None else segment.size}"
            )
        memory = next((one for one in take.memories if one.of_device == segment.of_device), None)
        if memory is None:
            raise RunError(f"rank {peer} sent a tile through memory that this device cannot open")
        if memory not in segment.opened:
            segment.opened[memory] = memory.open(segment.handle, segment.size)
        landing = Landing(segment, start, size)
        receiving.landing.append(landing)
        row = segment.opened[memory].memory[start : start + size]
        return landing, take.start(row, arrival.movement.after)

    def landed(self, peer: int, landing: Landing) -> None:
        """Take note that a tile was copied out of its place: it is given back once all before it are."""
        receiving = self._receiving[peer]
        landing.over = True
        while receiving.landing and receiving.landing[0].over:
            over = receiving.landing.popleft()
            over.segment.untold.add(over.start, over.size)
            receiving.given += 1

    def may_lack(self, peer: int, size: int) -> bool:
        """Whether a peer may wait for places that this rank is through with, to send a tile of a size."""
        receiving = self._receiving.get(peer)
        return receiving is not None and any(one.untold.may_lack(size) for one in receiving.segments.values())

    def let_go(self) -> None:
        """Close what was opened of others."""
        for receiving in self._receiving.values():
            for segment in receiving.segments.values():
                _close_all(segment)

    def close(self) -> None:
        """Close everything; nobody sends or receives any more."""
        self.let_go()
        for sending in self._sending.values():
            for ring in sending.rings.values():
                for segment in (ring.before, ring.segment):
                    if segment is not None:
                        segment.close()
            sending.rings.clear()

    def _take(self, sending: _Sending, reach: Reach, push: Outgoing) -> torch.Tensor | None:
        """Give a push a place, and write its ticket; None where there is no room."""
        of_device = reach.of_device(push.size)
        memories = () if push.export is None else push.export.memories
        memory = next(one for one in memories if one.of_device == of_device)
        ring = sending.rings.get(memory)
        if ring is None or ring.places.size < push.size:
            if ring is not None and (ring.places.held or ring.before is not None):
                return None
            ring = self._export(sending, memory, push.size, ring)
        start = ring.places.take(push.size)
        if start is None:
            return None
        sending.taken.append(ring)
        sending.tickets.append(TICKET.pack(ring.number, start, push.size) + ring.first)
        ring.first = b""
        return ring.segment.memory[start : start + push.size]

    def _export(self, sending: _Sending, memory: PeerMemory, least: int, before: _Ring | None) -> _Ring:
        size = max(RING_BYTES, 1 << (least - 1).bit_length())
        segment = memory.export(size)
        size = segment.memory.numel()
        replaced = 0 if before is None else before.number + 1
        first = _FIRST.pack(size, memory.of_device, replaced) + segment.handle
        made = _Ring(sending.made, segment, TileRing(size), first, None if before is None else before.segment)
        sending.made += 1
        sending.rings[memory] = made
        return made

    def _learn(self, receiving: _Receiving, peer: int, number: int, told: bytes) -> None:
        """Take in a segment; the one that it replaces is used no more."""
        if number in receiving.segments or not _FIRST.size < len(told) <= _FIRST.size + _MOST:
            raise RunError(f"rank {peer}: expected a segment that is new, with its handle, got {number} again")
        size, of_device, replaced = _FIRST.unpack_from(told)
        before = receiving.segments.pop(replaced - 1, None)
        if before is not None:
            _close_all(before)
        made = _Known(size, bool(of_device), told[_FIRST.size :], {}, Untold(size))
        receiving.segments[number] = made


def _close_all(segment: _Known) -> None:
    for opened in segment.opened.values():
        opened.close()
    segment.opened.clear()
