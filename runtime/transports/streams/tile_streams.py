"""Tile streams: plain TCP beside ZeroMQ, for the bytes of large tiles from one rank to another.

ZeroMQ receives into memory of its own, out of which a tile is copied to where it belongs, and threads of its own hand
it on at both ends. On a stream its bytes go from where they lie into the socket, and from the socket to where they
belong, by the threads that send and poll:

    number, size, length of header, header, tile         a message, of a tile of at least 4 KiB
    number, size, length of header, seal, header, tile   where tiles are verified: of number, header and tile

Messages of a pair are numbered over both ways. One that goes by ZeroMQ says how many by the stream come before it, and
before one by the stream as many come by ZeroMQ as its number says; so each end hands them over in one order:

    sender     0 by ZeroMQ     1: a tile, by the stream     2 by ZeroMQ, behind one by the stream
    receiver   hands over 0, reads the tile to where it belongs, holds 2 until that is there

A stream is dialled as the first large tile goes, and used once both ends have proved themselves, each for a nonce of
the other; until then, and where nothing can be dialled, tiles are frames of ZeroMQ. The receiver speaks first:

    receiver   nonce
    sender     its rank, the bytes that streams of it have carried, nonce, keyed digest of these and the receiver's
    receiver   keyed digest of the sender's nonce

A stream that breaks is dialled again, and goes on where it was if the receiver has as many bytes as the sender says;
otherwise some were lost, and the receiver says so.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from functools import partial
from hmac import compare_digest
from secrets import token_bytes
from time import monotonic
from typing import TYPE_CHECKING, final

import zmq

from maniple.process.error import RunError
from maniple.runtime.transports.proof import HANDSHAKE_S, NONCE, STREAM_GREETING, receiver_proof, stream_greeting
from maniple.runtime.transports.redial import LOOK_S, PATIENCE_S
from maniple.runtime.transports.streams.inlet import Inlet, Message
from maniple.runtime.transports.streams.outlet import Outlet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from maniple.process.clock import Clock

__all__: list[str] = []

MOST_CALLERS = 64
"""Connections that have not proved themselves; a further one takes the place of the oldest."""


@final
class _Caller:
    """A connection that has not proved itself.

    Args:
        link: the connection.
        since: when it came.
    """

    __slots__ = ("asked", "heard", "link", "since")

    def __init__(self, link: socket.socket, since: float) -> None:
        self.link, self.since = link, since
        self.asked, self.heard = token_bytes(NONCE), b""


@final
class TileStreams:
    """A rank's ends of all its streams; used by the thread that sends and polls.

    Args:
        poller: is woken by them.
        rank: this rank.
        size: number of ranks.
        key: this rank's.
        interface: the address to bind to.
        sealed: whether tiles have seals.
        clock: what patience is measured by.

    Raises:
        RunError: no port can be bound there.
    """

    def __init__(
        self,
        poller: zmq.Poller,
        rank: int,
        size: int,
        key: str,
        interface: str,
        *,
        sealed: bool = False,
        clock: Clock = monotonic,
    ) -> None:
        self.rejected = 0
        """How many connections were refused for a wrong proof."""
        self._poller, self._rank, self._size, self._key, self._clock = poller, rank, size, key, clock
        self._sealed = sealed
        host = interface.strip("[]")
        try:
            self._listener = socket.create_server(
                (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=max(128, size)
            )
        except OSError as error:
            raise RunError(f"no port of {interface} could be bound for tiles: {error}; see maniple doctor") from error
        self._listener.setblocking(False)
        poller.register(self._listener.fileno(), zmq.POLLIN)
        self.port = int(self._listener.getsockname()[1])
        self._outlets: dict[int, Outlet] = {}
        self._inlets: dict[int, Inlet] = {}
        self._dialled: dict[int, Outlet] = {}  # by descriptor, likewise the callers
        self._callers: dict[int, _Caller] = {}

    def outlet(self, peer: int, endpoint: str) -> Outlet | None:
        """Give the stream to a peer where it carries tiles, and dial it where there is none.

        Args:
            peer: the receiver.
            endpoint: the peer's: `tcp://HOST:PORT#KEY:PORT`, or without the second port where it takes no streams.
        """
        outlet = self._outlets.get(peer)
        if outlet is None:
            where, _, told = endpoint.partition("#")
            key, _, port = told.partition(":")
            if not port:
                return None
            place = where.removeprefix("tcp://").rpartition(":")[0].strip("[]"), int(port)
            outlet = self._outlets[peer] = Outlet(self._poller, self._rank, peer, place, key)
        if outlet.is_up:
            return outlet
        self._dial(outlet)
        return None

    def wait_s(self, timeout_s: float | None) -> float | None:
        """Give how long may be waited until `serve`: as long as is wanted, where nothing is broken or unproved."""
        if self._callers or any(outlet.broke for outlet in self._outlets.values()):
            return LOOK_S if timeout_s is None else min(LOOK_S, timeout_s)
        if any(inlet.since is not None for inlet in self._inlets.values()):
            return LOOK_S if timeout_s is None else min(LOOK_S, timeout_s)
        return timeout_s

    def serve(self, events: Mapping[object, int]) -> None:
        """Go on with all that is ready, and with what is broken.

        Args:
            events: what the poller found.

        Raises:
            RunError: what answers is no rank, bytes were lost, or a stream stays broken.
        """
        for number in [number for number in self._dialled if number in events]:
            if not self._dialled[number].serve():
                del self._dialled[number]
        for number in [number for number in self._callers if number in events]:
            self._hear(number)
        if self._listener.fileno() in events:
            self._accept()
        now = self._clock()
        for number in [number for number, caller in self._callers.items() if now - caller.since > HANDSHAKE_S]:
            self._drop(number)
        for peer, outlet in self._outlets.items():
            if outlet.broke:
                self._dial(outlet)
                self._judge(peer, outlet, now)

    def read(
        self,
        events: Mapping[object, int],
        heard: Sequence[int],
        room: Callable[[int, int, int], memoryview],
        take: Callable[[int, Message], None],
    ) -> None:
        """Read what has come.

        Args:
            events: what the poller found.
            heard: by rank, how many messages came by ZeroMQ.
            room: gives the bytes for a tile of a rank, of a size, behind so many that are not taken yet.
            take: is told of the messages whose turn it is.

        Raises:
            RunError: bytes were lost, or those that are awaited have no stream to come by.
        """
        for peer, inlet in self._inlets.items():
            if inlet.is_due(events):
                now = self._clock()
                for message in inlet.read(heard[peer], partial(room, peer), now):
                    take(peer, message)
                if inlet.since is not None:
                    self._judge(peer, inlet, now)

    def inlet(self, peer: int) -> Inlet:
        """Give the stream from a peer, if only to be."""
        inlet = self._inlets.get(peer)
        if inlet is None:
            inlet = self._inlets[peer] = Inlet(self._poller, self._rank, peer, sealed=self._sealed)
        return inlet

    def close(self) -> None:
        """End all; what is still to be sent has a second."""
        for outlet in self._outlets.values():
            outlet.close()
        for inlet in self._inlets.values():
            inlet.close()
        for number in list(self._callers):
            self._drop(number)
        self._poller.unregister(self._listener.fileno())
        self._listener.close()

    def _dial(self, outlet: Outlet) -> None:
        number = outlet.dial(self._clock())
        if number is not None:
            self._dialled[number] = outlet

    def _judge(self, peer: int, end: Outlet | Inlet, now: float) -> None:
        """See how long a stream is broken.

        Raises:
            RunError: too long, and something waits for it.
        """
        if end.since is None:
            end.since = now
        if now - end.since <= PATIENCE_S:
            return
        if isinstance(end, Outlet) and not end.waiting:
            end.broke = False  # nobody misses it
            return
        raise RunError(
            f"rank {self._rank}: the stream of tiles with rank {peer} broke, and cannot be made again for "
            f"{PATIENCE_S:.0f} s; see to the network between their hosts, or whether something between them closes "
            "connections"
        )

    def _accept(self) -> None:
        for _ in range(MOST_CALLERS):  # a flood of them keeps nobody from what else is ready
            try:
                link, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if not self._callers:
                    raise RunError(f"tiles: {error}; raise the limit of open files with `ulimit -n`") from error
                self._drop(next(iter(self._callers)))
                continue
            link.setblocking(False)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if len(self._callers) == MOST_CALLERS:
                self._drop(next(iter(self._callers)))
            caller = self._callers[link.fileno()] = _Caller(link, self._clock())
            self._poller.register(link.fileno(), zmq.POLLIN)
            with suppress(OSError):
                link.send(caller.asked)

    def _hear(self, number: int) -> None:
        """Take a sender's proof, and give this rank's."""
        caller = self._callers[number]
        try:
            heard = caller.link.recv(STREAM_GREETING.size - len(caller.heard))
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        caller.heard += heard
        if not heard or len(caller.heard) < STREAM_GREETING.size:
            if not heard:
                self._drop(number)
            return
        peer, position, nonce, _ = STREAM_GREETING.unpack(caller.heard)
        expected = stream_greeting(self._key, caller.asked, (peer, self._rank), position, nonce)
        if peer >= self._size or peer == self._rank or not compare_digest(caller.heard, expected):
            self.rejected += 1
            self._drop(number)
            return
        del self._callers[number]
        self._poller.unregister(number)
        with suppress(OSError):  # it left already, and dials again
            caller.link.send(receiver_proof(self._key, nonce, peer, self._rank))
        self.inlet(peer).follow(caller.link, position)

    def _drop(self, number: int) -> None:
        caller = self._callers.pop(number)
        self._poller.unregister(number)
        caller.link.close()
