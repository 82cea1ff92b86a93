"""The copy engine of one rank: moves tiles between its memories, and to and from others in the schedule's order.

What goes to another rank stays within releases and credits. Nothing here blocks on a device: its streams wait for each
other by events, and the engine hears of those that the host must wait for.
"""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, cast

from maniple.runtime.devices.event import DONE, when_all
from maniple.runtime.peers.exchange_queue import ExchangeQueue
from maniple.runtime.peers.peer_queue import HEADER, PeerQueue
from maniple.runtime.peers.peer_tiles import PeerTiles
from maniple.runtime.storage.copy_kernels import LOAN_BYTES
from maniple.runtime.storage.push import note
from maniple.runtime.transports.transport import Meter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maniple.runtime.control.stepper import Stepper
    from maniple.runtime.devices.event import Event
    from maniple.runtime.storage.push import Exchange, Incoming, LocalFold, Movement, Outgoing
    from maniple.runtime.transports.transport import Delivery, Transport

__all__: list[str] = []

DEFAULT_CREDIT_BYTES = 64 << 20
EARLY_BYTES = 1 << 20
"""Bound of the bytes that go to a peer before it has released where they belong, and so of those that it keeps."""
STAGED_BYTES = 256 << 20
"""Bound of the bytes of pinned rows of tiles on their way out, to peers and, apart from these, within the rank."""


class CopyEngine:
    """Moves tiles between this rank's memory and others'.

    For each directed pair of ranks both ends hold the same queue of pushes. A push is sent when it is the head of its
    queue, its source is ready, the receiver has released its destination or keeps it until then (`PeerQueue`), and the
    bytes in flight stay within the credit (a single push may exceed it when nothing else is in flight). Releases and
    acknowledgements are two counters that ride on every frame; what a peer may wait for goes alone, before a long tile:

        rank 0 -> 1   push 0, push 1, push 2 ...      header: pushes of yours that I released, your bytes landed here
        rank 1 -> 0   push 0', (header alone), ...

    A transport that lets go of what has left gets large tiles of the host on loan: their pushes end then. What leaves a
    device is staged in a pinned row until it is sent. Rows are bounded: a push waits until others have gone, but not
    the head of a queue, for which those behind it may wait; within the rank apart, for a peer may wait for what those
    bring. Rows of what arrives are bounded by the sender's credit: bytes count as landed once they lie on the device.

    All state belongs to one thread, `run`; other threads talk to it through `submit`, `start` and `close`. Under a
    stepper it takes turns in place of a thread. A turn costs what has changed, however many peers there are.

    Args:
        transport: the wire.
        credit_bytes: bound of the bytes in flight to one peer.
        failed: called with the exception that ended the engine.
        local: counts the bytes that go from one memory of this rank to another.
        stepper: gives it turns; None where it has a thread.
        early_bytes: bound of the bytes that go to one peer before they are released.
    """

    def __init__(
        self,
        transport: Transport,
        credit_bytes: int,
        failed: Callable[[BaseException], None],
        local: Meter | None = None,
        stepper: Stepper | None = None,
        early_bytes: int = EARLY_BYTES,
    ) -> None:
        self.transport = transport
        transport.place = self.place
        self.credit_bytes = credit_bytes
        self.peak_in_flight = 0
        self.tiles = PeerTiles({})
        """What goes through memory that ranks of this host open of each other; set before anything is submitted."""
        self._exchanges = ExchangeQueue(transport, lambda over: self._command(partial(self._end_exchange, over)))
        self._local = local or Meter()
        self._failed = failed
        self._peers = {peer: PeerQueue(early_bytes) for peer in range(transport.size) if peer != transport.rank}
        self._touched: dict[int, None] = {}  # the peers of whom something has changed, in that order
        self._stepper = stepper
        self._commands: deque[Callable[[], None]] = deque()
        self._early: deque[tuple[Incoming, memoryview]] = deque()  # came early, and may land now
        self._staged = {True: 0, False: 0}  # bytes of rows, within the rank and to peers
        self._unstaged: dict[bool, deque[Outgoing]] = {True: deque(), False: deque()}
        self.peak_staged = 0
        self._closed = False
        self._thread = threading.Thread(target=self.run, name=f"engine {transport.rank}", daemon=True)

    def begin(self) -> None:
        """Start the engine's thread, or have it take turns."""
        if self._stepper is None:
            self._thread.start()
        else:
            self._stepper.add(self.turn)

    def submit(self, outgoing: list[Outgoing], incoming: list[Incoming], movements: Iterable[Movement] = ()) -> None:
        """Append pushes, and the exchanges of movements, to the queues, in the order that all ends share."""

        def enqueue() -> None:
            for push in outgoing:
                self._peers[push.peer].outgoing.append(push)
                self._touched[push.peer] = None
                if self.tiles.carries(push):
                    self.tiles.line_up(push)
            for arrival in incoming:
                self._touched[arrival.peer] = None
                self._peers[arrival.peer].line_up(arrival)
            self._exchanges.line_up(movements)

        self._command(enqueue)

    def start(self, movement: Movement, account: int, after: Iterable[Event] = ()) -> None:
        """Say that everything a movement waits for at this rank is done, or will be.

        Args:
            movement: the movement, whose pushes were submitted before.
            account: the number under which the transport counts its bytes.
            after: the events of what it waits for that may not be done yet.
        """
        waited = tuple(after)
        self._command(lambda: self._start(movement, account, waited))

    def place(self, peer: int, size: int, behind: int) -> memoryview | None:
        """Give the destination of a payload that is arriving, where it can be written as it comes; see `Transport`.

        Where it was released, nobody reads any more.
        """
        queue = self._peers[peer]
        arrival = queue.incoming[behind] if queue.is_free(behind) else None
        return arrival.place if arrival is not None and arrival.size == size else None

    def close(self) -> None:
        """End the thread; pushes not made are dropped."""
        self._closed = True
        if self._stepper is not None:
            self._stepper.remove(self.turn)
        self.transport.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def run(self) -> None:
        """Serve commands and frames until closed."""
        try:
            while not self._closed:
                self._serve(None)
        except BaseException as error:  # noqa: BLE001  (the thread's last act: hand any failure to the rank)
            if not self._closed:
                self._failed(error)

    def turn(self) -> bool:
        """Serve what there is; says whether there was anything."""
        try:
            return self._serve(0.0)
        except Exception as error:  # noqa: BLE001  (its last act, likewise)
            self._failed(error)
            self.close()
            return True

    def _serve(self, wait_s: float | None) -> bool:
        """Serve commands, frames and the peers that they concern; says whether there were any."""
        deliveries = self.transport.poll(wait_s)
        served = bool(deliveries or self._commands)
        for delivery in deliveries:
            self._receive(delivery)
        while self._commands:
            self._commands.popleft()()
        while self._touched or self._early:
            if not self._touched:  # what is kept lands, and is folded, once all that can go has gone
                self._take(*self._early.popleft())
                continue
            number = next(iter(self._touched))
            del self._touched[number]
            self._pump(number, self._peers[number])
            self._tell(number, self._peers[number])
        return served

    def _command(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        if self._stepper is None:
            self.transport.wake()

    def _start(self, movement: Movement, account: int, after: tuple[Event, ...]) -> None:
        movement.account = account
        movement.after = after
        movement.begun_ns = movement.ended_ns = 0
        movement.left = len(movement.outgoing) + len(movement.later) + len(movement.incoming) + len(movement.folds)
        if movement.exchange is not None:
            movement.left += 1
            self._when(after, partial(self._exchanges.note_part, movement.exchange))
        for fold in movement.folds.values():
            fold.missing = fold.parts
        for arrival in (one for one in movement.incoming if one.peer in self._peers):
            self._when(() if arrival.on_device else after, partial(self._grant, arrival))
        for push in movement.outgoing:
            self._go(push)
        for fold in movement.folds.values():
            if not fold.parts:
                self._when(() if fold.on_device else after, partial(self._fold, movement, fold))

    def _when(self, events: Iterable[Event], call: Callable[[], None]) -> None:
        """Have something done on this thread once events are done: now, if they are."""
        waiting = [event for event in events if not event.done]
        if not waiting:
            call()
            return

        def hear(error: BaseException | None) -> None:
            if error is None:
                self._command(call)
            else:
                self._failed(error)

        when_all(waiting, hear)

    def _grant(self, arrival: Incoming) -> None:
        """Release the destination of a push."""
        arrival.released = True
        self._touched[arrival.peer] = None
        self._early += self._peers[arrival.peer].grant()

    def _go(self, push: Outgoing) -> None:
        """Set a push out: its source is there, or will be after what the movement comes after."""
        after, arrival = push.movement.after, push.arrival
        if push.across is not None and arrival is not None:
            end = push.across(after)
            self._when((end,), partial(self._end_crossing, push, arrival, end))
        elif self.tiles.carries(push):
            push.due = True
            self._place(push.peer)
        elif push.stage is not None:
            self._unstaged[arrival is not None].append(push)
            self._stage_what_fits()
        else:
            self._when(after, partial(self._hand_over, push, DONE))

    def _place(self, peer: int) -> None:
        """Begin the copies to places of a peer's rings of tiles whose turn it is."""
        for push, end in self.tiles.place(peer):
            self._when((end,), partial(self._hand_over, push, end))

    def _stage_what_fits(self) -> None:
        """Begin the copies to pinned rows for which there is room, and those that others wait behind."""
        begun: list[Outgoing] = []
        for within, waiting in self._unstaged.items():
            for push in [waiting.popleft() for _ in range(len(waiting))]:
                held = self._staged[within]
                heads = not within and self._peers[push.peer].outgoing[0] is push
                if held and held + push.size > STAGED_BYTES and not heads:
                    waiting.append(push)
                    continue
                self._staged[within] = held + push.size
                self.peak_staged = max(self.peak_staged, held + push.size)
                begun.append(push)
        for push in begun:
            end = cast("Callable[[Iterable[Event]], Event]", push.stage)(push.movement.after)
            self._when((end,), partial(self._hand_over, push, end))

    def _unstage(self, push: Outgoing) -> None:
        """Take note that a push has gone: its row is free, and another may be the head of its queue."""
        if push.stage is not None:
            self._staged[push.arrival is not None] -= push.size
        self._stage_what_fits()

    def _hand_over(self, push: Outgoing, end: Event) -> None:
        """Send a push, or hand it over where this rank is both ends; its bytes are at hand."""
        note(push.movement, end)
        if push.arrival is None:
            push.ready = True
            self._touched[push.peer] = None
        else:
            self._one_less(push.movement)
            self._land(push.arrival, push.pack())
            self._unstage(push)

    def _end_crossing(self, push: Outgoing, arrival: Incoming, end: Event) -> None:  # from device to device
        self._one_less(push.movement)
        self._note_landing(arrival, end)

    def _fold(self, movement: Movement, fold: LocalFold) -> None:
        end = fold.fold(movement.after)

        def note_fold() -> None:
            note(movement, end)
            self._exchanges.note_part(fold.joins)
            for push in fold.then:
                self._go(push)
            self._one_less(movement)

        self._when((end,), note_fold)

    def _end_exchange(self, exchange: Exchange) -> None:
        exchange.end()
        for push in exchange.then:
            self._go(push)
        self._one_less(exchange.movement)

    def _one_less(self, movement: Movement) -> None:
        movement.left -= 1
        if not movement.left:
            movement.finished()

    def _receive(self, delivery: Delivery) -> None:
        peer = self._peers[delivery.peer]
        self._touched[delivery.peer] = None
        self.tiles.take_back(delivery.peer, peer.hear(delivery.header))
        self._place(delivery.peer)
        ticket, payload = delivery.header[HEADER.size :], delivery.payload
        if payload is None and not ticket:
            return
        arrival = peer.take(delivery.peer, payload)
        if arrival is not None and payload is not None:
            self._take(arrival, payload)
        elif arrival is not None:
            self._land_from_peer(arrival, ticket)

    def _take(self, arrival: Incoming, payload: memoryview) -> None:
        """Land a tile whose destination is released."""
        self._touched[arrival.peer] = None
        if not arrival.on_device:
            self._peers[arrival.peer].received_bytes += arrival.size
        self._land(arrival, payload)

    def _land_from_peer(self, arrival: Incoming, ticket: bytes) -> None:
        """Copy a tile out of its place in a ring of its sender."""
        landing, end = self.tiles.land(arrival, ticket)

        def note_landing() -> None:
            self.tiles.landed(arrival.peer, landing)
            self._local.add(arrival.movement.account, arrival.wire.take())
            self._note_landing(arrival, end)

        self._when((end,), note_landing)

    def _land(self, arrival: Incoming, payload: memoryview) -> None:
        after = arrival.movement.after
        if payload is arrival.place:
            arrival.wire.written += arrival.size
            self._note_landing(arrival, DONE)
        elif arrival.on_device:
            end = arrival.land(payload, after)
            self._when((end,), partial(self._note_landing, arrival, end))
        else:
            self._when(after, lambda: self._note_landing(arrival, arrival.land(payload, ())))

    def _note_landing(self, arrival: Incoming, end: Event) -> None:
        movement = arrival.movement
        note(movement, end)
        if arrival.on_device and arrival.peer in self._peers:
            self._peers[arrival.peer].received_bytes += arrival.size
            self._touched[arrival.peer] = None
        if arrival.peer == self.transport.rank:
            self._local.add(movement.account, arrival.wire.take())
        if arrival.feeds >= 0:
            fold = movement.folds[arrival.feeds]
            fold.missing -= 1
            if not fold.missing:
                self._when(() if fold.on_device else movement.after, partial(self._fold, movement, fold))
        for push in arrival.then:
            self._go(push)
        self._one_less(movement)

    def _pump(self, number: int, peer: PeerQueue) -> None:
        """Send every push that may go."""
        while peer.outgoing and peer.outgoing[0].ready:
            push = peer.outgoing[0]
            in_flight = peer.sent_bytes - peer.landed_bytes
            beyond = in_flight and in_flight + push.size > self.credit_bytes
            if beyond or not peer.may_send(push.size, early=not self.tiles.carries(push)):
                return
            if push.size >= LOAN_BYTES:  # a long tile's header is heard when all of it is there: the peer would wait
                self._tell(number, peer)
            peer.outgoing.popleft()
            push.ready = False
            peer.send(push.size)
            self.peak_in_flight = max(self.peak_in_flight, in_flight + push.size)
            header, gone = peer.header(self.tiles.given(number)), partial(self._one_less, push.movement)
            if self.tiles.carries(push):
                self.transport.send(number, header + self.tiles.ticket(number), None, 0)
                gone()
                self._stage_what_fits()
            elif push.lend is not None and self.transport.lends:
                self.transport.send(number, header, push.lend(partial(self._command, gone)), push.movement.account)
                self._stage_what_fits()
            else:
                self.transport.send(number, header, push.pack(), push.movement.account)
                gone()
                self._unstage(push)

    def _tell(self, number: int, peer: PeerQueue) -> None:
        """Send the counters alone when the peer may be waiting for them."""
        lacks = peer.incoming and self.tiles.may_lack(number, peer.incoming[0].size)
        if lacks or peer.must_tell(self.credit_bytes):
            self.transport.send(number, peer.header(self.tiles.given(number)), None, 0)
