"""ZeroMQ: the one place where its sockets are made, and the transport between processes."""

from __future__ import annotations

import errno
import math
import secrets
import threading
from contextlib import suppress
from functools import partial
from hmac import compare_digest

import zmq

from maniple.process.error import RunError
from maniple.process.wakeup import Wakeup
from maniple.runtime.transports import proof
from maniple.runtime.transports.message import MAX_FRAME
from maniple.runtime.transports.proof import COUNT, DIGEST, NONCE, STREAM_HEAD
from maniple.runtime.transports.redial import Redials
from maniple.runtime.transports.streams.inlet import LEAST, Message
from maniple.runtime.transports.streams.tile_streams import TileStreams
from maniple.runtime.transports.tile_frames import MAX_PAYLOAD, TILE_FRAME, receive_frames, send_frames
from maniple.runtime.transports.transport import LOOPBACK, Delivery, Guard, Transport

__all__: list[str] = []

UNGUARDED = Guard()
BEHIND, COUNTS = 1 << 31, 1 << 32
"""The first is added to the number of a message that comes behind others by the stream."""
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
    """Tiles over TCP: one ROUTER that only receives, one DEALER per peer that only sends, and streams of large tiles.

    Every rank mints a key, which its endpoint carries to the others over the control plane, with the port of its
    streams (`streams`), where tiles are not encrypted: `tcp://HOST:PORT#KEY:PORT`. A connection carries messages only
    after its sender has proved that it knows the key (`proof`); one that cannot is closed, and counted in `rejected`
    where it tried. Its name is derived from the key and the two ranks, and its first frame carries the protocol and a
    nonce, for which the receiver proves that it knows the key, too. Every further message is numbered, and a connection
    that was made again begins with a mark (`redial`), so that a loss is an error and never a wait without end. Frames
    are short, so that a stranger's cannot be long:

        hello                                            protocol, nonce, keyed digest of nonce, sender and receiver
        answer                                           back: keyed digest of nonce, sender and receiver
        mark                                             keyed digest of sender and receiver, count
        count + header                                   count = 0, 1, 2, ... modulo 2**31
        count + 2**31, streamed + header                 of which so many before went by the stream
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
        proof.be_receiver(self._router, self._key, encrypt=guard.encrypt)
        self._gate = proof.Gate(self._context, self._key, rank, size, encrypt=guard.encrypt)
        self.endpoint = f"{bind(self._router, interface)}#{self._key}"
        self._dealers: dict[int, zmq.Socket[bytes]] = {}
        self._sent, self._streamed = [0] * size, [0] * size
        self._received = [-1] * size  # -1: the hello is still to come
        self._names = {proof.name(self._key, peer, rank): peer for peer in range(size) if peer != rank}
        self._awaited: dict[zmq.Socket[bytes], tuple[int, bytes]] = {}  # receivers that have not proved themselves yet
        self._alarm = Wakeup()
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._gate.socket, zmq.POLLIN)
        self._poller.register(self._alarm.fileno(), zmq.POLLIN)
        self._redials = Redials(self._poller)
        # Whoever wants tiles encrypted gets no connection on which they are not.
        self._streams = (
            None if guard.encrypt else TileStreams(self._poller, rank, size, self._key, interface, sealed=guard.verify)
        )
        if self._streams is not None:
            self.endpoint += f":{self._streams.port}"
        self._owner = threading.Lock()
        self._closed = False

    @property
    def rejected(self) -> int:
        """How many connections were refused for a wrong proof, or a wrong greeting after it."""
        return self._gate.rejected + self._mismatched + (0 if self._streams is None else self._streams.rejected)

    def send(self, peer: int, header: bytes, payload: memoryview | None, account: int) -> None:
        """Hand a header and a payload to the socket, which refers to the payload until it is gone."""
        with self._owner:
            self._check()
            socket = self._dealers.get(peer)
            if socket is None:
                socket = self._dealers[peer] = self._dial(peer)
            size = 0 if payload is None else payload.nbytes
            if size > MAX_PAYLOAD:
                raise RunError(
                    f"a tile of {size} bytes for rank {peer} is larger than the {MAX_PAYLOAD} bytes that a "
                    "frame carries; use a plan that cuts it finer"
                )
            streams = None if size < LEAST else self._streams
            outlet = None if streams is None else streams.outlet(peer, self.endpoints[peer])
            number, behind = self._sent[peer] % BEHIND, self._streamed[peer]
            first = COUNT.pack(number) + header
            if outlet is None and behind:
                first = COUNT.pack(number + BEHIND) + COUNT.pack(behind % COUNTS) + header
            self._sent[peer] += 1
            key, sealed = _key_of(self.endpoints[peer]), self._guard.verify
            last = (proof.seal(key, self.rank, peer, first, payload),) if sealed else ()
            if payload is not None:
                self.meter.add(account, size)
            if payload is not None and outlet is not None:
                self._streamed[peer] += 1
                outlet.send(STREAM_HEAD.pack(number, len(header), size) + b"".join(last) + header, payload)
                return
            socket.send(first, zmq.NOBLOCK | (zmq.SNDMORE if payload is not None or last else 0))
            if payload is not None:
                send_frames(socket, payload, zmq.SNDMORE if last else 0)
            for frame in last:
                socket.send(frame, zmq.NOBLOCK)

    def poll(self, timeout_s: float | None) -> list[Delivery]:
        """Wait for something, and take all that is there."""
        with self._owner:
            self._check()
            ready = self._alarm.arm()
            timeout_s = self._redials.wait_s(timeout_s)
            if self._streams is not None:
                timeout_s = self._streams.wait_s(timeout_s)
            wait = None if timeout_s is None else milliseconds(timeout_s)
            events = dict(self._poller.poll(wait if ready else 0))
            self._alarm.disarm(readable=self._alarm.fileno() in events)
            self._check()
            if self._gate.socket in events:
                self._gate.answer()
            for socket in [socket for socket in self._awaited if socket in events]:
                self._judge(socket)
            for peer in self._redials.look(events):
                self._dealers[peer].send(
                    proof.mark(_key_of(self.endpoints[peer]), self.rank, peer, self._sent[peer] - self._streamed[peer])
                )
            found: list[Delivery] = []
            if self._router in events:
                for _ in range(_DRAIN):
                    self._receive(found)
                    if not int(self._router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                        break
            if self._streams is not None:
                self._streams.serve(events)
                room, take = partial(self._room, found), partial(self._hand_over, found)
                self._streams.read(events, self._received, room, take)
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
            if self._streams is not None:
                self._streams.close()
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
        proof.be_sender(socket, key, self.rank, peer, encrypt=self._guard.encrypt)
        self._redials.watch(socket, peer)
        socket.connect(self.endpoints[peer].partition("#")[0])
        socket.send(proof.hello(key, self.rank, peer, nonce), zmq.NOBLOCK)
        self._awaited[socket] = peer, proof.digest(key, b"answer" + nonce, self.rank, peer)
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
        payload, told = None, None
        if router.getsockopt(zmq.RCVMORE):
            room = partial(self._room_of, found, peer, first)
            payload, told = receive_frames(router, room, self.rank, sealed=self._guard.verify)
        if peer is None:
            self._mismatched += 1
        elif first[:-4] == proof.mark(self._key, peer, self.rank, 0)[:-4]:
            self._number(peer, first[-4:], 0, last=True)
        elif self._received[peer] < 0:
            nonce = first[-NONCE - DIGEST : -DIGEST]
            if first == proof.hello(self._key, peer, self.rank, nonce) and payload is None:
                self._received[peer] = 0
                with suppress(zmq.ZMQError):  # it left already, and dials again
                    answer = proof.digest(self._key, b"answer" + nonce, peer, self.rank)
                    router.send_multipart([identity, answer], zmq.NOBLOCK)
            else:
                self._mismatched += 1
        else:
            self._check_seal(peer, first, payload, told)
            self._number(peer, first, _behind(first)[0])
            self._take(peer, first, payload, found)

    def _take(self, peer: int, first: bytes, payload: memoryview | None, found: list[Delivery]) -> None:
        """Hand a message on, or have it wait for those before it that come by the stream."""
        streamed, header = _behind(first)
        if self._streams is not None:
            inlet = self._streams.inlet(peer)
            if inlet.hold(streamed, Message(header, payload)):
                return
        found.append(Delivery(peer, header, payload))

    def _hand_over(self, found: list[Delivery], peer: int, message: Message) -> None:
        """Hand a message on that has come by the stream, or that had to wait behind such a one.

        Raises:
            RunError: it is not what was sent.
        """
        if message.first:
            self._check_seal(peer, message.first, message.payload, message.told)
        found.append(Delivery(peer, message.header, message.payload))

    def _room(self, found: list[Delivery], peer: int, size: int, others: int) -> memoryview:
        return self.room(peer, size, found, others)

    def _room_of(self, found: list[Delivery], peer: int | None, first: bytes, size: int) -> memoryview:
        """Give the bytes into which a tile is received; `found` was received before it, and not handed over."""
        if peer is None:
            return memoryview(bytearray())
        others = 0 if self._streams is None else self._streams.inlet(peer).tiles_before(_behind(first)[0])
        return self.room(peer, size, found, others)

    def _check_seal(self, peer: int, first: bytes, payload: memoryview | None, told: bytes | None) -> None:
        """See that a message, or a tile, is as its sender sent it.

        Raises:
            RunError: it is not.
        """
        if self._guard.verify and told != proof.seal(self._key, peer, self.rank, first, payload):
            raise RunError(
                f"rank {self.rank}: message {int.from_bytes(first[: COUNT.size], 'little') % BEHIND} of rank {peer} is "
                "not what it sent: its seal is wrong; the wire between them corrupts what it carries, or somebody does"
            )

    def _number(self, peer: int, first: bytes, streamed: int, *, last: bool = False) -> None:
        """See that a message, or a mark after the last one, is the next by ZeroMQ.

        Raises:
            RunError: frames were lost.
        """
        expected = max(0, self._received[peer])
        number = (COUNT.unpack_from(first)[0] - streamed) % BEHIND if len(first) >= COUNT.size else -1
        if number != expected % BEHIND:
            got = first[: COUNT.size] if number < 0 else COUNT.pack(number)
            raise RunError(
                f"rank {self.rank}: frames of rank {peer} were lost: expected message {expected}, got "
                f"{got.hex()}; the connection between them broke"
            )
        self._received[peer] = expected if last else expected + 1


def _behind(first: bytes) -> tuple[int, bytes]:
    """Give how many messages by the stream come before one by ZeroMQ, and its header."""
    size = COUNT.size
    if len(first) < 2 * size or COUNT.unpack_from(first)[0] < BEHIND:
        return 0, first[size:]
    return COUNT.unpack_from(first, size)[0], first[2 * size :]


def _key_of(endpoint: str) -> str:
    """Give the key of the rank that is behind an endpoint."""
    key = endpoint.partition("#")[2].partition(":")[0]
    if not key:
        raise RunError(
            f"expected an endpoint such as tcp://HOST:PORT#KEY, got {len(endpoint)} characters without a key"
        )
    return key
