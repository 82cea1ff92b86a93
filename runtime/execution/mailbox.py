"""Mailboxes: pushes of dynamic launches between ranks of one host, through memory that both map.

Each directed pair of ranks has a box in the sender's file; both ends hold the same queue of pushes, so a tile needs no
name. The sender copies a tile into a block of its own file and puts the block's place into the box; the receiver copies
it to where it belongs once that is free, and says so by a counter, after which the block is used again:

    box of rank 0 for rank 1   | sent: 7 | taken: 5 | hungry | starved | (start, size) of tiles 5, 6 ... |

Whoever completes what a push waits for sends it, on its own thread, and whoever frees a place lands the tile that is
there already. Only a receiver that has nothing to land, though its place is free, is *hungry*, and only a sender whose
box is full is *starved*: these are woken, by a byte in a pipe.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from maniple.process.copying import copy_into
from maniple.process.error import RunError
from maniple.runtime.transports.shared_memory import ENTRIES, FIRST_ENTRY, HUNGRY, LINE, SENT, STARVED, TAKEN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.runtime.storage.push import Incoming, LocalFold, Movement, Outgoing
    from maniple.runtime.transports.shared_memory import Bytes, SharedMemory

__all__: list[str] = []

# Blocks come in sizes of powers of two, so that tiles of a loop find those of the iteration before.
SMALLEST = LINE


class Box:
    """The pushes of one rank to another of its host, as either sees them.

    Args:
        shared: the memory of this rank.
        sender: who pushes.
        receiver: to whom.
    """

    def __init__(self, shared: SharedMemory, sender: int, receiver: int) -> None:
        # Compiled, and not loaded where nobody pushes.
        from maniple.runtime.transports import shared_counter

        box, self.place = shared.box(sender, receiver)
        self._counter = shared_counter
        self._entries = box[FIRST_ENTRY : FIRST_ENTRY + ENTRIES * 16].view(np.int64)
        self._shared, self._sender = shared, sender
        self._held: deque[tuple[int, Bytes]] = deque()
        self._free: dict[int, list[Bytes]] = {}
        self.sent = self.taken = 0
        self.in_flight = 0

    def put(self, payload: memoryview) -> int:
        """Send a tile; its box must not be full. Gives the bytes that were written."""
        size = payload.nbytes
        room = max(SMALLEST, 1 << (size - 1).bit_length())
        free = self._free.get(room)
        block = free.pop() if free else self._shared.arena.allocate(room)
        written = copy_into(block[:size], np.frombuffer(payload, np.uint8))
        entry = 2 * (self.sent % ENTRIES)
        self._entries[entry] = self._shared.arena.start_of(int(block.ctypes.data))
        self._entries[entry + 1] = size
        self._held.append((room, block))
        self.sent += 1
        self.in_flight += room
        self._counter.exchange(self.place + SENT, self.sent)
        return written

    def full(self, size: int, credit: int) -> bool:
        """Whether a tile of a size has to wait; first takes back the blocks of tiles that were taken."""
        taken = self._counter.value_of(self.place + TAKEN)
        while self.taken < taken:
            room, block = self._held.popleft()
            self._free.setdefault(room, []).append(block)
            self.in_flight -= room
            self.taken += 1
        return self.sent - self.taken == ENTRIES or bool(self.in_flight and self.in_flight + size > credit)

    def look(self) -> memoryview | None:
        """Look at the next tile, if there is one."""
        if self.sent == self.taken:
            self.sent = self._counter.value_of(self.place + SENT)
            if self.sent == self.taken:
                return None
        entry = 2 * (self.taken % ENTRIES)
        start, size = int(self._entries[entry]), int(self._entries[entry + 1])
        return self._shared.window(self._sender, start, size).data

    def take(self) -> None:
        """Give the block of the tile that was looked at back."""
        self.taken += 1
        self._counter.exchange(self.place + TAKEN, self.taken)

    def raise_flag(self, flag: int) -> None:
        """Ask to be woken."""
        self._counter.exchange(self.place + flag, 1)

    def lower_flag(self, flag: int) -> bool:
        """Say whether the other end asked to be woken, once."""
        place = self.place + flag
        return self._counter.value_of(place) == 1 and self._counter.exchange(place, 0) == 1


class _Neighbour:
    """The pushes from and to another rank of this host that are not over."""

    def __init__(self, shared: SharedMemory, rank: int) -> None:
        self.outgoing: deque[Outgoing] = deque()
        self.incoming: deque[Incoming] = deque()
        self.to = Box(shared, shared.rank, rank)
        self.from_ = Box(shared, rank, shared.rank)


class Mailbox:
    """Moves tiles of dynamic launches between the ranks of one host.

    Any thread may call any method; a thread of its own waits to be woken.

    Args:
        shared: the memory of this host's ranks, with a wake-up pipe for each.
        credit_bytes: bound of the bytes in flight to one other rank; a single larger tile goes alone.
        failed: called with the exception that ended the mailbox's thread.
    """

    def __init__(self, shared: SharedMemory, credit_bytes: int, failed: Callable[[BaseException], None]) -> None:
        self._shared = shared
        self._credit_bytes = credit_bytes
        self._failed = failed
        self._lock = threading.Lock()
        self._neighbours = {rank: _Neighbour(shared, rank) for rank in sorted(shared.ranks - {shared.rank})}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"mailbox {shared.rank}", daemon=True)
        self._thread.start()

    def submit(self, outgoing: Sequence[Outgoing], incoming: Sequence[Incoming]) -> None:
        """Append pushes to the queues, in the order that both ends share."""
        with self._lock:
            for push in outgoing:
                self._neighbours[push.peer].outgoing.append(push)
            for arrival in incoming:
                self._neighbours[arrival.peer].incoming.append(arrival)

    def start(self, movement: Movement, account: int) -> None:
        """Say that everything a movement waits for at this rank is done.

        Args:
            movement: the movement, whose pushes were submitted before.
            account: the number under which its bytes are counted.
        """
        ended: list[Movement] = []
        with self._lock:
            movement.account = account
            movement.left = len(movement.outgoing) + len(movement.later) + len(movement.incoming) + len(movement.folds)
            for push in movement.outgoing:
                push.ready = True
            for arrival in movement.incoming:
                arrival.released = True
            for fold in movement.folds.values():
                fold.missing = fold.parts
                if not fold.missing:
                    self._fold(movement, fold, ended)
            peers = {push.peer for push in (*movement.outgoing, *movement.later)}
            for rank in sorted(peers | {arrival.peer for arrival in movement.incoming}):
                self._serve(rank, self._neighbours[rank], ended)
        _finish(ended)

    def close(self) -> None:
        """End the thread; pushes not made are dropped."""
        self._closed = True
        self._shared.wake(self._shared.rank)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closed:
                self._shared.await_wakeup()
                ended: list[Movement] = []
                with self._lock:
                    for rank, neighbour in self._neighbours.items():
                        self._serve(rank, neighbour, ended)
                _finish(ended)
        except BaseException as error:  # noqa: BLE001  (the thread's last act: hand any failure to the rank)
            if not self._closed:
                self._failed(error)

    def _serve(self, rank: int, neighbour: _Neighbour, ended: list[Movement]) -> None:
        """Send and land what can be, in the order of the queues."""
        landed = self._land(rank, neighbour, ended)
        self._send(rank, neighbour, ended)
        while landed and neighbour.incoming and self._land(rank, neighbour, ended):
            self._send(rank, neighbour, ended)

    def _send(self, rank: int, neighbour: _Neighbour, ended: list[Movement]) -> None:
        box, queue = neighbour.to, neighbour.outgoing
        while queue and queue[0].ready:
            push = queue[0]
            if box.full(push.size, self._credit_bytes):
                box.raise_flag(STARVED)
                if box.full(push.size, self._credit_bytes):
                    return
            queue.popleft().ready = False
            self._shared.wrote(box.put(push.pack()), push.movement.account)
            if box.lower_flag(HUNGRY):
                self._shared.wake(rank)
            _one_less(push.movement, ended)

    def _land(self, rank: int, neighbour: _Neighbour, ended: list[Movement]) -> bool:
        """Land what is there and has a place; says whether there was any."""
        box, queue = neighbour.from_, neighbour.incoming
        landed = False
        while queue and queue[0].released:
            payload = box.look()
            if payload is None:
                box.raise_flag(HUNGRY)
                payload = box.look()
                if payload is None:
                    return landed
            arrival = queue.popleft()
            arrival.released = False
            if payload.nbytes != arrival.size:
                raise RunError(f"rank {rank} sent a tile of {payload.nbytes} bytes; expected {arrival.size} bytes")
            arrival.land(payload, ())
            box.take()
            if box.lower_flag(STARVED):
                self._shared.wake(rank)
            landed = True
            if arrival.feeds >= 0:
                fold = arrival.movement.folds[arrival.feeds]
                fold.missing -= 1
                if not fold.missing:
                    self._fold(arrival.movement, fold, ended)
            _one_less(arrival.movement, ended)
        return landed

    def _fold(self, movement: Movement, fold: LocalFold, ended: list[Movement]) -> None:
        fold.fold(())
        for push in fold.then:
            push.ready = True
            self._send(push.peer, self._neighbours[push.peer], ended)
        _one_less(movement, ended)


def _one_less(movement: Movement, ended: list[Movement]) -> None:
    movement.left -= 1
    if not movement.left:
        ended.append(movement)


def _finish(ended: list[Movement]) -> None:
    for movement in ended:
        movement.finished()
