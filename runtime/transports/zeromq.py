"""ZeroMQ: the one place where its sockets are made, and the transport between processes."""

from __future__ import annotations

import errno
import math
import secrets
import struct
import threading
from contextlib import suppress
from hashlib import blake2b
from hmac import compare_digest

import zmq

from maniple.process.error import RunError
from maniple.process.wakeup import Wakeup
from maniple.runtime.transports.message import MAX_FRAME, PROTOCOL
from maniple.runtime.transports.proof import Gate, be_receiver, be_sender, digest, name
from maniple.runtime.transports.redial import Redials
from maniple.runtime.transports.transport import LOOPBACK, Delivery, Guard, Transport

__all__: list[str] = []

MAX_PAYLOAD = 2**31
"""Bytes of one tile; a larger one is refused before it is sent."""
TILE_FRAME = 1 << 20
"""Bytes of one frame of a tile: what a stranger can have a rank hold, so larger tiles go in several."""
UNGUARDED = Guard()
NONCE, DIGEST = 16, 16
COUNT = struct.Struct("<I")
SIZE = struct.Struct("<Q")
_DRAIN = 1024
# What CURVE adds to a frame: a name, a nonce, flags and a seal, of 33 bytes.
_SEAL = 64
# What a sender takes is short: an answer, and before it the other end's part of a handshake.
_ANSWER = 1 << 10


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

    Every rank mints a key, which its endpoint carries to the others over the control plane: `tcp://HOST:PORT#KEY`. A
    connection carries messages only after its sender has proved that it knows it (`proof`); one that cannot is
    closed, and counted in `rejected` where it tried. Its name is derived from the key and the two ranks, and its first
    frame carries the protocol and a nonce, for which the receiver proves that it knows the key, too. Every further
    message is numbered, and a connection that was made again begins with a mark (`redial`), so that a loss is an error
    and never a wait without end. Frames are short, so that a stranger's cannot be long:

        hello                                            protocol, nonce, keyed digest of nonce, sender and receiver
        answer                                           back: keyed digest of nonce, sender and receiver
        mark                                             keyed digest of sender and receiver, count
        count + header                                   count = 0, 1, 2, ... modulo 2**32
        count + header, payload                          of at most 1 MiB
        count + header, size, payload, payload ...       of more: `size` bytes in all
        ..., seal                                        where tiles are verified: keyed digest of all these frames

    Args:
        rank: this rank.
        size: number of ranks.
        token: the run's secret; keys of tiles are minted here, and do not follow from it.
        interface: the address to bind to.
        guard: what guards tiles, the same on all ranks.
    """

    way = "ZeroMQ"
    guards = lends = True

    def __init__(
        self, rank: int, size: int, token: str, interface: str = LOOPBACK, *, guard: Guard = UNGUARDED
    ) -> None:
        super().__init__(rank, size, token, interface)
        self._mismatched = 0
        self._key = secrets.token_hex(16)
        self._guard = guard
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, max(1023, 3 * size + 8))  # one to each peer, two that watch it, and ours
        # A peer's queues are bounded by the copy engine's credits, and a stranger has none.
        most = TILE_FRAME + _SEAL * guard.encrypt
        self._router = make_socket(self._context, zmq.ROUTER, max_bytes=most)
        be_receiver(self._router, self._key, encrypt=guard.encrypt)
        self._gate = Gate(self._context, self._key, rank, size, encrypt=guard.encrypt)
        self.endpoint = f"{bind(self._router, interface)}#{self._key}"
        self._dealers: dict[int, zmq.Socket[bytes]] = {}
        self._sent = [0] * size
        self._received = [-1] * size  # -1: the hello is still to come
        self._names = {name(self._key, peer, rank): peer for peer in range(size) if peer != rank}
        self._awaited: dict[zmq.Socket[bytes], tuple[int, bytes]] = {}  # receivers that have not proved themselves yet
        self._alarm = Wakeup()
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._gate.socket, zmq.POLLIN)
        self._poller.register(self._alarm.fileno(), zmq.POLLIN)
        self._redials = Redials(self._poller)
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
            size = 0 if payload is None else payload.nbytes
            if size > MAX_PAYLOAD:
                raise RunError(
                    f"a tile of {size} bytes for rank {peer} is larger than the {MAX_PAYLOAD} bytes that a "
                    "frame carries; use a plan that cuts it finer"
                )
            self._sent[peer] += 1
            key = _key_of(self.endpoints[peer])
            last = (seal(key, self.rank, peer, first, payload),) if self._guard.verify else ()
            socket.send(first, zmq.NOBLOCK | (zmq.SNDMORE if payload is not None or last else 0))
            if payload is not None:
                _send_payload(socket, payload, zmq.SNDMORE if last else 0)
            for frame in last:
                socket.send(frame, zmq.NOBLOCK)
            if payload is None:
                return
            self.meter.add(account, payload.nbytes)

    def poll(self, timeout_s: float | None) -> list[Delivery]:
        """Wait for something, and take all that is there."""
        with self._owner:
            self._check()
            ready = self._alarm.arm()
            timeout_s = self._redials.wait_s(timeout_s)
            wait = None if timeout_s is None else milliseconds(timeout_s)
            events = dict(self._poller.poll(wait if ready else 0))
            self._alarm.disarm(readable=self._alarm.fileno() in events)
            self._check()
            if self._gate.socket in events:
                self._gate.answer()
            for socket in [socket for socket in self._awaited if socket in events]:
                self._judge(socket)
            for peer in self._redials.look(events):
                self._dealers[peer].send(mark(_key_of(self.endpoints[peer]), self.rank, peer, self._sent[peer]))
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
                socket.disable_monitor()  # before its other end is closed: it says so, and would wait for a reader
                socket.close()
            self._redials.close()
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
        key, nonce = _key_of(self.endpoints[peer]), secrets.token_bytes(NONCE)
        socket = make_socket(self._context, zmq.DEALER, linger_ms=1000, max_bytes=_ANSWER)
        be_sender(socket, key, self.rank, peer, encrypt=self._guard.encrypt)
        self._redials.watch(socket, peer)
        socket.connect(self.endpoints[peer].partition("#")[0])
        socket.send(hello(key, self.rank, peer, nonce), zmq.NOBLOCK)
        self._awaited[socket] = peer, digest(key, b"answer" + nonce, self.rank, peer)
        self._poller.register(socket, zmq.POLLIN)
        return socket

    def _judge(self, socket: zmq.Socket[bytes]) -> None:
        """Take a receiver's proof.

        Raises:
            RunError: it is wrong.
        """
        peer, expected = self._awaited[socket]
        if not compare_digest(b"".join(socket.recv_multipart(zmq.NOBLOCK)), expected):
            raise RunError(
                f"rank {self.rank}: what answers at {self.endpoints[peer].partition('#')[0]} does not know the key of "
                f"rank {peer}: it is no rank of this run; see to addresses and routes between their hosts"
            )
        self._poller.unregister(socket)
        del self._awaited[socket]

    def _receive(self, found: list[Delivery]) -> None:
        router = self._router
        identity = router.recv(zmq.NOBLOCK)
        peer = self._names.get(identity)
        first = router.recv(zmq.NOBLOCK) if router.getsockopt(zmq.RCVMORE) else b""
        payload, told = self._payload(peer, found) if router.getsockopt(zmq.RCVMORE) else (None, None)
        if peer is None:
            self._mismatched += 1
        elif first[:-4] == mark(self._key, peer, self.rank, 0)[:-4]:
            self._number(peer, first[-4:], last=True)
        elif self._received[peer] < 0:
            nonce = first[-NONCE - DIGEST : -DIGEST]
            if first == hello(self._key, peer, self.rank, nonce) and payload is None:
                self._received[peer] = 0
                with suppress(zmq.ZMQError):  # it left already, and dials again
                    answer = digest(self._key, b"answer" + nonce, peer, self.rank)
                    router.send_multipart([identity, answer], zmq.NOBLOCK)
            else:
                self._mismatched += 1
        else:
            if self._guard.verify and told != seal(self._key, peer, self.rank, first, payload):
                raise RunError(
                    f"rank {self.rank}: message {self._received[peer]} of rank {peer} is not what it sent: its seal is "
                    "wrong; the wire between them corrupts what it carries, or somebody does"
                )
            self._number(peer, first)
            found.append(Delivery(peer, first[COUNT.size :], payload))

    def _payload(self, peer: int | None, found: list[Delivery]) -> tuple[memoryview | None, bytes | None]:
        """Take the frames of a tile, and the seal behind it; `found` was received before it.

        Raises:
            RunError: they are not as many bytes as they say.
        """
        router, sealed = self._router, self._guard.verify
        whole = router.recv(zmq.NOBLOCK, copy=False)
        if not router.getsockopt(zmq.RCVMORE):
            return (None, whole.bytes) if sealed else (whole.buffer, None)
        part = router.recv(zmq.NOBLOCK, copy=False)
        if sealed and not router.getsockopt(zmq.RCVMORE):
            return whole.buffer, part.bytes
        size = SIZE.unpack(whole.buffer)[0] if whole.buffer.nbytes == SIZE.size else MAX_PAYLOAD + 1
        tile = memoryview(b"") if peer is None or size > MAX_PAYLOAD else self.room(peer, size, found)
        came = 0
        while router.getsockopt(zmq.RCVMORE) or not sealed:
            view = part.buffer
            if came + view.nbytes <= tile.nbytes:
                tile[came : came + view.nbytes] = view
            came += view.nbytes
            if not router.getsockopt(zmq.RCVMORE):
                break
            part = router.recv(zmq.NOBLOCK, copy=False)
        if came != size:
            raise RunError(f"rank {self.rank}: expected a tile of {size} bytes, got {came}; the wire is broken")
        return tile, part.bytes if sealed else None

    def _number(self, peer: int, first: bytes, *, last: bool = False) -> None:
        """See that a message, or a mark after the last one, is the next.

        Raises:
            RunError: frames were lost.
        """
        expected = max(0, self._received[peer]) & 0xFFFFFFFF
        if len(first) < COUNT.size or COUNT.unpack_from(first)[0] != expected:
            raise RunError(
                f"rank {self.rank}: frames of rank {peer} were lost: expected message {expected}, got "
                f"{first[: COUNT.size].hex()}; the connection between them broke"
            )
        self._received[peer] = expected if last else self._received[peer] + 1


def hello(key: str, sender: int, receiver: int, nonce: bytes) -> bytes:
    """Give the first frame of a connection.

    Args:
        key: the receiver's.
        sender: a rank.
        receiver: another.
        nonce: what the receiver's answer proves itself for.
    """
    return PROTOCOL.encode() + b" " + nonce + digest(key, b"hello" + nonce, sender, receiver)


def mark(key: str, sender: int, receiver: int, count: int) -> bytes:
    """Give what a sender says on a connection that was made again.

    Args:
        key: the receiver's.
        sender: a rank.
        receiver: another.
        count: how many messages it has sent.
    """
    return digest(key, b"mark", sender, receiver) + COUNT.pack(count & 0xFFFFFFFF)


def seal(key: str, sender: int, receiver: int, first: bytes, payload: memoryview | None) -> bytes:
    """Give what shows that a message is as its sender sent it.

    Args:
        key: the receiver's.
        sender: a rank.
        receiver: another.
        first: its number and header.
        payload: its tile, if it has one.
    """
    told = blake2b(SIZE.pack(len(first)) + first, key=digest(key, b"seal", sender, receiver, 32), digest_size=DIGEST)
    if payload is not None:
        told.update(payload)
    return told.digest()


def _key_of(endpoint: str) -> str:
    """Give the key of the rank that is behind an endpoint."""
    _, _, key = endpoint.partition("#")
    if not key:
        raise RunError(
            f"expected an endpoint such as tcp://HOST:PORT#KEY, got {len(endpoint)} characters without a key"
        )
    return key


def _send_payload(socket: zmq.Socket[bytes], payload: memoryview, last: int) -> None:
    """Send a tile's bytes in frames that refer to them; `last` are the flags of the last one."""
    if payload.nbytes <= TILE_FRAME:
        socket.send(payload, zmq.NOBLOCK | last, copy=False)
        return
    told = payload.cast("B")
    socket.send(SIZE.pack(told.nbytes), zmq.NOBLOCK | zmq.SNDMORE)
    for start in range(0, told.nbytes, TILE_FRAME):
        more = zmq.SNDMORE if start + TILE_FRAME < told.nbytes else last
        socket.send(told[start : start + TILE_FRAME], zmq.NOBLOCK | more, copy=False)
