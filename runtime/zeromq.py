"""ZeroMQ: the one place where its sockets are made, and the transport between processes."""

from __future__ import annotations

import math
import struct
import threading
from hashlib import blake2b
from typing import TYPE_CHECKING, final

import zmq

from maniple.regions.error import RunError
from maniple.runtime.alarm import Alarm
from maniple.runtime.message import MAX_MESSAGE, PROTOCOL
from maniple.runtime.transport import Delivery, Meter, Transport

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []

LOOPBACK = "127.0.0.1"
MAX_PAYLOAD = 2**31
"""Bytes of one tile; a larger frame is refused before it is sent, and dropped with its connection if one comes."""
COUNT = struct.Struct("<I")
_DRAIN = 1024


def make_socket(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, *, linger_ms: int = 0, max_bytes: int = MAX_MESSAGE
) -> zmq.Socket[bytes]:
    """Make a socket with the options that every one of ours has.

    ZeroMQ's own heartbeats stay off: they cut a connection, and lose what it carries, when both ends were merely
    suspended for a while. Who is alive is the control plane's business.

    Args:
        context: of one owner; sockets are used by one thread at a time.
        kind: such as `zmq.ROUTER`.
        linger_ms: how long closing waits for what was not sent yet.
        max_bytes: largest frame that is taken.
    """
    socket = context.socket(kind)
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.LINGER, linger_ms)
    socket.setsockopt(zmq.MAXMSGSIZE, max_bytes)
    socket.setsockopt(zmq.SNDHWM, 0)  # credits and the control plane's small messages bound the queues
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 5000)
    if kind == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    return socket


def bind(socket: zmq.Socket[bytes], interface: str, port: int | None = None) -> str:
    """Bind a socket to one interface and give its endpoint; whoever binds chooses the port, then tells it.

    Raises:
        RunError: the port is taken, or may not be used.
    """
    try:
        socket.bind(f"tcp://{interface}:{'*' if port is None else port}")
    except zmq.ZMQError as error:
        if port is None:
            raise RunError(f"no port of {interface} could be bound: {error}; see maniple doctor") from error
        taken = "is already in use" if error.errno == zmq.EADDRINUSE else f"cannot be bound: {error}"
        raise RunError(f"port {port} {taken} on {interface}; leave --port out to let the launcher choose") from error
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
    return endpoint.rstrip(b"\0").decode() if isinstance(endpoint, bytes) else str(endpoint)


def milliseconds(seconds: float) -> int:
    """Round up to what ZeroMQ waits for, so that a wait never ends early."""
    return max(0, math.ceil(seconds * 1000))


@final
class ZmqTransport(Transport):
    """Tiles over TCP: one ROUTER that only receives, one DEALER per peer that only sends.

    A connection's name is derived from the run's secret and the two ranks, and its first frame carries the protocol;
    frames of any other connection are dropped and counted in `rejected`. Every further message is numbered, so that
    a loss (a connection that broke) is an error and never a wait without end:

        hello                                  protocol, keyed digest of sender and receiver
        count + header [, payload]             count = 0, 1, 2, ... modulo 2**32

    Args:
        rank: this rank.
        size: number of ranks.
        token: the run's secret.
        interface: the address to bind to.
    """

    def __init__(self, rank: int, size: int, token: str, interface: str = LOOPBACK) -> None:
        self.rank = rank
        self.size = size
        self.rejected = 0
        self._token = token.encode()
        self._meter = Meter()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = make_socket(self._context, zmq.ROUTER, max_bytes=MAX_PAYLOAD)
        self.endpoint = bind(self._router, interface)
        self._endpoints: tuple[str, ...] = ()
        self._dealers: dict[int, zmq.Socket[bytes]] = {}
        self._sent = [0] * size
        self._received = [-1] * size  # -1: the hello is still to come
        self._names = {self._name(peer, rank): peer for peer in range(size) if peer != rank}
        self._alarm = Alarm()
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._alarm.fileno(), zmq.POLLIN)
        self._owner = threading.Lock()
        self._closed = False

    def connect(self, endpoints: Sequence[str]) -> None:
        """Learn where every rank takes tiles; connections are made at the first send.

        Raises:
            RunError: not one endpoint per rank.
        """
        if len(endpoints) != self.size:
            raise RunError(f"expected the endpoints of {self.size} ranks, got {len(endpoints)}")
        self._endpoints = tuple(endpoints)

    def send(self, peer: int, header: bytes, payload: memoryview | None, account: int) -> None:
        """Hand a header and a payload to the socket, which refers to the payload until it is gone."""
        with self._owner:
            self._check()
            socket = self._dealers.get(peer)
            if socket is None:
                socket = self._dealers[peer] = self._dial(peer)
            first = COUNT.pack(self._sent[peer] & 0xFFFFFFFF) + header
            self._sent[peer] += 1
            if payload is None:
                socket.send(first, zmq.NOBLOCK)
                return
            if payload.nbytes > MAX_PAYLOAD:
                raise RunError(
                    f"a tile of {payload.nbytes} bytes for rank {peer} is larger than the {MAX_PAYLOAD} bytes that a "
                    "frame carries; use a plan that cuts it finer"
                )
            socket.send(first, zmq.NOBLOCK | zmq.SNDMORE)
            socket.send(payload, zmq.NOBLOCK, copy=False)
            self._meter.add(account, payload.nbytes)

    def poll(self, timeout_s: float | None) -> list[Delivery]:
        """Wait for something, and take all that is there."""
        with self._owner:
            self._check()
            ready = self._alarm.arm()
            wait = None if timeout_s is None else milliseconds(timeout_s)
            events = dict(self._poller.poll(wait if ready else 0))
            self._alarm.disarm(readable=self._alarm.fileno() in events)
            self._check()
            found: list[Delivery] = []
            if self._router in events:
                for _ in range(_DRAIN):
                    self._receive(found)
                    if not int(self._router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                        break
            return found

    def wake(self) -> None:
        """Make a poll return."""
        self._alarm.ring()

    def measured(self, account: int) -> int | None:
        """Count an account's bytes, if they are known."""
        return self._meter.of(account)

    def total(self) -> int:
        """Count all bytes."""
        return self._meter.total

    def close(self) -> None:
        """End it from any thread: a poll under way returns first."""
        self._closed = True
        self._alarm.ring()
        with self._owner:
            if self._context.closed:
                return
            for socket in self._dealers.values():
                socket.close()
            self._router.close()
            self._context.term()
            self._alarm.close()

    def _check(self) -> None:
        if self._closed:
            raise RunError(f"rank {self.rank}: the transport is closed")

    def _dial(self, peer: int) -> zmq.Socket[bytes]:
        if peer == self.rank or not 0 <= peer < len(self._endpoints):
            raise RunError(f"rank {self.rank}: expected another rank of 0..{self.size - 1} to send to, got {peer}")
        socket = make_socket(self._context, zmq.DEALER, linger_ms=1000, max_bytes=MAX_MESSAGE)
        socket.setsockopt(zmq.ROUTING_ID, self._name(self.rank, peer))
        socket.connect(self._endpoints[peer])
        socket.send(self._hello(self.rank, peer), zmq.NOBLOCK)
        return socket

    def _receive(self, found: list[Delivery]) -> None:
        router = self._router
        peer = self._names.get(router.recv(zmq.NOBLOCK))
        first = router.recv(zmq.NOBLOCK) if router.getsockopt(zmq.RCVMORE) else b""
        payload = None
        extra = 0
        while router.getsockopt(zmq.RCVMORE):
            payload = router.recv(zmq.NOBLOCK, copy=False).buffer
            extra += 1
        if peer is None or extra > 1:
            self.rejected += 1
        elif self._received[peer] < 0:
            if first == self._hello(peer, self.rank) and not extra:
                self._received[peer] = 0
            else:
                self.rejected += 1
        else:
            self._number(peer, first)
            found.append(Delivery(peer, first[COUNT.size :], payload))

    def _number(self, peer: int, first: bytes) -> None:
        expected = self._received[peer] & 0xFFFFFFFF
        if len(first) < COUNT.size or COUNT.unpack_from(first)[0] != expected:
            raise RunError(
                f"rank {self.rank}: frames of rank {peer} were lost: expected message {expected}, got "
                f"{first[: COUNT.size].hex()}; the connection between them broke"
            )
        self._received[peer] += 1

    def _name(self, sender: int, receiver: int) -> bytes:
        return b"M" + self._digest(b"name", sender, receiver)

    def _hello(self, sender: int, receiver: int) -> bytes:
        return PROTOCOL.encode() + b" " + self._digest(b"hello", sender, receiver)

    def _digest(self, purpose: bytes, sender: int, receiver: int) -> bytes:
        told = purpose + struct.pack("<II", sender, receiver)
        return blake2b(told, key=self._token[:64], digest_size=16).digest()
