"""ZeroMQ: the one place where its sockets are made, and the transport between processes."""

from __future__ import annotations

import errno
import math
import struct
import threading

import numpy as np
import zmq

from maniple.process.error import RunError
from maniple.process.wakeup import Wakeup
from maniple.runtime.transports.message import MAX_FRAME, PROTOCOL
from maniple.runtime.transports.proof import Gate, be_receiver, be_sender, digest, name
from maniple.runtime.transports.transport import LOOPBACK, Delivery, Transport

__all__: list[str] = []

MAX_PAYLOAD = 2**31
"""Bytes of one tile; a larger one is refused before it is sent."""
TILE_FRAME = 256 << 10
"""Bytes of one frame of a tile: what a stranger can have a rank hold, so larger tiles go in several."""
COUNT = struct.Struct("<I")
SIZE = struct.Struct("<Q")
_DRAIN = 1024
# What CURVE adds to a frame: a name, a nonce, flags and a seal, of 33 bytes.
_SEAL = 64


def make_socket(
    context: zmq.Context[zmq.Socket[bytes]],
    kind: int,
    *,
    linger_ms: int = 0,
    max_bytes: int = MAX_FRAME + _SEAL,
    sending: int = 0,
    receiving: int = 0,
) -> zmq.Socket[bytes]:
    """Make a socket with the options that every one of ours has.

    ZeroMQ's own heartbeats stay off: they cut a connection, and lose what it carries, when both ends were merely
    suspended for a while. Who is alive is the control plane's business.

    Args:
        context: of one owner; sockets are used by one thread at a time.
        kind: such as `zmq.ROUTER`.
        linger_ms: how long closing waits for what was not sent yet.
        max_bytes: largest frame that is taken; before its proof a connection can have one of them held.
        sending: messages that are held for a peer that does not read; 0 for any number, where credits bound them.
        receiving: messages of a peer that are held unread, likewise.

    Raises:
        RunError: this process may open no more files.
    """
    try:
        socket = context.socket(kind)
    except zmq.ZMQError as error:
        if error.errno == errno.EMFILE:
            raise RunError(f"ZeroMQ: {error}; raise the limit of open files with `ulimit -n`") from error
        raise
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.LINGER, linger_ms)
    socket.setsockopt(zmq.MAXMSGSIZE, max_bytes)
    socket.setsockopt(zmq.SNDHWM, sending)
    socket.setsockopt(zmq.RCVHWM, receiving)
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


class ZmqTransport(Transport):
    """Tiles over TCP: one ROUTER that only receives, one DEALER per peer that only sends.

    A connection carries messages only after its sender has proved that it is of this run (`proof`); one that cannot is
    closed, and counted in `rejected` where it tried. Its name is derived from the run's secret and the two ranks, and
    its first frame carries the protocol. Every further message is numbered, so that a loss (a connection that broke)
    is an error and never a wait without end. Frames are short, so that a stranger's cannot be long:

        hello                                            protocol, keyed digest of sender and receiver
        count + header                                   count = 0, 1, 2, ... modulo 2**32
        count + header, payload                          of at most 256 KiB
        count + header, size, payload, payload ...       of more: `size` bytes in all

    Args:
        rank: this rank.
        size: number of ranks.
        token: the run's secret.
        interface: the address to bind to.
    """

    way = "ZeroMQ"

    def __init__(self, rank: int, size: int, token: str, interface: str = LOOPBACK) -> None:
        super().__init__(rank, size, token, interface)
        self._mismatched = 0
        self._token = token
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        # A peer's queues are bounded by the copy engine's credits, and a stranger has none.
        self._router = make_socket(self._context, zmq.ROUTER, max_bytes=TILE_FRAME)
        be_receiver(self._router)
        self._gate = Gate(self._context, token, rank, size)
        self.endpoint = bind(self._router, interface)
        self._dealers: dict[int, zmq.Socket[bytes]] = {}
        self._sent = [0] * size
        self._received = [-1] * size  # -1: the hello is still to come
        self._names = {name(token, peer, rank): peer for peer in range(size) if peer != rank}
        self._alarm = Wakeup()
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._gate.socket, zmq.POLLIN)
        self._poller.register(self._alarm.fileno(), zmq.POLLIN)
        self._owner = threading.Lock()
        self._closed = False

    @property
    def rejected(self) -> int:
        """How many connections were refused for a wrong proof, or a wrong greeting after it."""
        return self._gate.rejected + self._mismatched

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
            _send_payload(socket, payload)
            self.meter.add(account, payload.nbytes)

    def poll(self, timeout_s: float | None) -> list[Delivery]:
        """Wait for something, and take all that is there."""
        with self._owner:
            self._check()
            ready = self._alarm.arm()
            wait = None if timeout_s is None else milliseconds(timeout_s)
            events = dict(self._poller.poll(wait if ready else 0))
            self._alarm.disarm(readable=self._alarm.fileno() in events)
            self._check()
            if self._gate.socket in events:
                self._gate.answer()
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
            self._gate.socket.close()
            self._context.term()
            self._alarm.close()

    def _check(self) -> None:
        if self._closed:
            raise RunError(f"rank {self.rank}: the transport is closed")

    def _dial(self, peer: int) -> zmq.Socket[bytes]:
        if peer == self.rank or not 0 <= peer < len(self.endpoints):
            raise RunError(f"rank {self.rank}: expected another rank of 0..{self.size - 1} to send to, got {peer}")
        socket = make_socket(self._context, zmq.DEALER, linger_ms=1000)
        be_sender(socket, self._token, self.rank, peer)
        socket.connect(self.endpoints[peer])
        socket.send(self._hello(self.rank, peer), zmq.NOBLOCK)
        return socket

    def _receive(self, found: list[Delivery]) -> None:
        router = self._router
        peer = self._names.get(router.recv(zmq.NOBLOCK))
        first = router.recv(zmq.NOBLOCK) if router.getsockopt(zmq.RCVMORE) else b""
        payload = self._payload() if router.getsockopt(zmq.RCVMORE) else None
        if peer is None:
            self._mismatched += 1
        elif self._received[peer] < 0:
            if first == self._hello(peer, self.rank) and payload is None:
                self._received[peer] = 0
            else:
                self._mismatched += 1
        else:
            self._number(peer, first)
            found.append(Delivery(peer, first[COUNT.size :], payload))

    def _payload(self) -> memoryview:
        """Take the frames of a tile.

        Raises:
            RunError: they are not as many bytes as they say.
        """
        router = self._router
        whole = router.recv(zmq.NOBLOCK, copy=False)
        if not router.getsockopt(zmq.RCVMORE):
            return whole.buffer
        size = SIZE.unpack(whole.buffer)[0] if whole.buffer.nbytes == SIZE.size else MAX_PAYLOAD + 1
        tile = np.empty(size if size <= MAX_PAYLOAD else 0, np.uint8).data
        came = 0
        while router.getsockopt(zmq.RCVMORE):
            part = router.recv(zmq.NOBLOCK, copy=False).buffer
            if came + part.nbytes <= tile.nbytes:
                tile[came : came + part.nbytes] = part
            came += part.nbytes
        if came != size:
            raise RunError(f"rank {self.rank}: expected a tile of {size} bytes, got {came}; the wire is broken")
        return tile

    def _number(self, peer: int, first: bytes) -> None:
        expected = self._received[peer] & 0xFFFFFFFF
        if len(first) < COUNT.size or COUNT.unpack_from(first)[0] != expected:
            raise RunError(
                f"rank {self.rank}: frames of rank {peer} were lost: expected message {expected}, got "
                f"{first[: COUNT.size].hex()}; the connection between them broke"
            )
        self._received[peer] += 1

    def _hello(self, sender: int, receiver: int) -> bytes:
        return PROTOCOL.encode() + b" " + digest(self._token, b"hello", sender, receiver)


def _send_payload(socket: zmq.Socket[bytes], payload: memoryview) -> None:
    """Send a tile's bytes in frames that refer to them."""
    if payload.nbytes <= TILE_FRAME:
        socket.send(payload, zmq.NOBLOCK, copy=False)
        return
    told = payload.cast("B")
    socket.send(SIZE.pack(told.nbytes), zmq.NOBLOCK | zmq.SNDMORE)
    for start in range(0, told.nbytes, TILE_FRAME):
        more = zmq.SNDMORE if start + TILE_FRAME < told.nbytes else 0
        socket.send(told[start : start + TILE_FRAME], zmq.NOBLOCK | more, copy=False)
