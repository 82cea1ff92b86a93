"""Peer tiles: what one end puts into places, the other finds there, whatever ends first; and nothing stays open."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maniple.process.error import RunError
from maniple.runtime.devices.event import DONE, Event
from maniple.runtime.devices.peer_memory import PeerMemory, Segment
from maniple.runtime.machine.peer_link import TURNS_WORTH
from maniple.runtime.peers import peer_tiles
from maniple.runtime.peers.peer_tiles import TICKET, PeerTiles
from maniple.runtime.peers.reach import Reach
from maniple.runtime.peers.tile_ring import ALIGNMENT
from maniple.runtime.storage.push import Incoming, Movement, Outgoing, PeerCopy

RING = 8 * ALIGNMENT


class Bytes(PeerMemory):
    """Memory of this process, which counts what is open of it; a segment is freed when its maker closes it."""

    way: ClassVar[str] = "bytes"
    of_device: ClassVar[bool] = True

    def __init__(self) -> None:
        self.hardware = "bytes"
        self.made: dict[bytes, torch.Tensor] = {}
        self.opened: list[bytes] = []
        self.most = 0

    def export(self, size: int) -> Segment:
        handle = b"%d" % (len(self.made) + sum(map(len, self.opened)) + id(self) % 7)
        while handle in self.made:
            handle += b"+"
        self.made[handle] = torch.full((size,), -1, dtype=torch.int8)
        self.most = max(self.most, len(self.made))
        return Segment(self.made[handle], handle, lambda: self._free(handle))

    def _free(self, handle: bytes) -> None:
        assert handle not in self.opened, "memory is freed that another rank has open"
        del self.made[handle]

    def open(self, handle: bytes, size: int) -> Segment:
        if handle not in self.made:
            raise RunError("no such memory")
        self.opened.append(handle)
        return Segment(self.made[handle][:size], b"", lambda: self.opened.remove(handle))


@dataclass(eq=False)
class Ends:
    """Rank 0 that sends tiles to rank 1; whoever uses it says when copies end, and what is told when."""

    memory: Bytes = field(default_factory=Bytes)
    sender: PeerTiles = field(default_factory=lambda: PeerTiles({1: Reach(device=True)}))
    receiver: PeerTiles = field(default_factory=lambda: PeerTiles({0: Reach(device=True)}))

    def push(self, value: int, size: int) -> Outgoing:
        def copy(row: torch.Tensor, events: Iterable[Event]) -> Event:
            row.fill_(value)
            return DONE

        movement = Movement(0)
        return Outgoing(1, size, memoryview, movement, export=PeerCopy((self.memory,), copy))  # type: ignore[arg-type]

    def arrival(self, size: int, read: Callable[[torch.Tensor], object]) -> Incoming:
        def copy(row: torch.Tensor, events: Iterable[Event]) -> Event:
            read(row)
            return DONE

        movement = Movement(0)
        return Incoming(0, size, lambda *_: DONE, movement, on_device=True, take=PeerCopy((self.memory,), copy))


@pytest.fixture(autouse=True)
def _small_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_tiles, "RING_BYTES", RING)


@given(st.lists(st.integers(1, 3 * RING), min_size=1, max_size=40), st.integers(0, 2**32))
def test_every_tile_arrives_as_it_was_sent_whatever_ends_first(sizes: list[int], seed: int) -> None:
    """Copies end in any order, and counters are told when they must be, or by chance; reading is the last moment."""
    chance, ends = Random(seed), Ends()
    due, sent = deque(ends.push(1 + number % 100, size) for number, size in enumerate(sizes)), deque[Outgoing]()
    for push in due:
        assert ends.sender.carries(push)
        ends.sender.line_up(push)
    wire: deque[bytes] = deque()
    reading: list[tuple[peer_tiles.Landing, torch.Tensor, int]] = []
    arrived, found = 0, [0] * len(sizes)

    def land() -> None:
        nonlocal arrived
        number = arrived
        rows: list[torch.Tensor] = []
        landing, _ = ends.receiver.land(ends.arrival(sizes[number], rows.append), wire.popleft())
        reading.append((landing, rows[0], number))
        arrived += 1

    def end_one() -> None:
        landing, row, number = reading.pop(chance.randrange(len(reading)))
        assert row.numel() == sizes[number]
        assert landing.segment.opened, "a segment was closed while a tile is read there"
        assert bool((row == 1 + number % 100).all()), "another tile lies where this one was not read yet"
        found[number] += 1
        ends.receiver.landed(0, landing)

    while sum(found) < len(sizes):
        if due and chance.random() < 0.7:
            due[0].due = True
            due.popleft()
        placed = [push for push, _ in ends.sender.place(1)]
        sent += placed
        wire.extend(ends.sender.ticket(1) for _ in placed)
        choices = [act for act, can in ((land, wire), (end_one, reading)) if can]
        if choices:
            chance.choice(choices)()
        must = arrived < len(sizes) and ends.receiver.may_lack(0, sizes[arrived])
        if must or chance.random() < 0.1:
            ends.sender.take_back(1, ends.receiver.given(0))
        assert choices or placed or due or must, "nothing would ever come again"
    assert found == [1] * len(sizes)
    assert [push.size for push in sent] == sizes
    assert ends.memory.most <= 2
    ends.receiver.let_go()
    assert ends.memory.opened == []
    ends.sender.close()
    assert ends.memory.made == {}


def test_a_tile_waits_for_those_before_it_and_for_its_own_source() -> None:
    ends = Ends()
    first, second = ends.push(1, 5), ends.push(2, 6)
    ends.sender.line_up(first)
    ends.sender.line_up(second)
    second.due = True
    assert list(ends.sender.place(1)) == []
    first.due = True
    assert [push for push, _ in ends.sender.place(1)] == [first, second]
    assert (first.due, second.due) == (False, False)


def ticket_of(ends: Ends, size: int = 5) -> bytes:
    push = ends.push(1, size)
    push.due = True
    ends.sender.line_up(push)
    assert len(list(ends.sender.place(1))) == 1
    return ends.sender.ticket(1)


def test_tickets_that_name_no_place_are_refused() -> None:
    ends = Ends()
    good = ticket_of(ends)

    def land(ticket: bytes, size: int = 5) -> None:
        ends.receiver.land(ends.arrival(size, lambda _: None), ticket)

    for ticket, size, why in (
        (good[:7], 5, "expected a ticket of 24 bytes, got 7"),
        (TICKET.pack(0, 0, 5), 5, "expected 5 bytes of a segment of 0"),
        (good, 6, "sent a tile of 5 bytes at 0 of segment 0; expected 6 bytes"),
        (TICKET.pack(0, RING, 5), 5, f"at {RING} of segment 0; expected 5 bytes of a segment of {RING}"),
        (good, 5, "expected a segment that is new"),
        (TICKET.pack(1, 0, 5) + good[24:48] + b"other", 5, "no such memory"),
    ):
        with pytest.raises(RunError, match=why):
            land(ticket, size)
    land(good[:24])
    with pytest.raises(RunError, match="memory that this rank cannot open"):
        PeerTiles({}).land(ends.arrival(5, lambda _: None), good)


def test_more_places_than_were_sent_cannot_be_given_back() -> None:
    ends = Ends()
    ticket_of(ends)
    ends.sender.take_back(1, 1)
    with pytest.raises(RunError, match="rank 1 gave back 1 places of tiles that it was not sent"):
        ends.sender.take_back(1, 2)
    with pytest.raises(RunError, match="gave back -1 places"):
        ends.sender.take_back(1, 0)


@pytest.mark.parametrize(
    ("reach", "small", "large"),
    [
        (Reach(), None, None),
        (Reach(host=True), False, False),
        (Reach(device=True), True, True),
        (Reach(device=True, host=True), True, True),
        (Reach(device=True, host=True, shares=True), False, True),
        (Reach(device=True, shares=True), True, True),
    ],
)
def test_small_tiles_of_ranks_that_share_a_gpu_go_over_the_host(
    reach: Reach, small: bool | None, large: bool | None
) -> None:
    assert (reach.of_device(TURNS_WORTH - 1), reach.of_device(TURNS_WORTH)) == (small, large)
