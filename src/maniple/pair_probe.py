"""The probe of a pair of hosts: how fast bytes go between them and how far their clocks are apart, by plain sockets.

One end answers, the other asks. A connection begins with the nonce of the end that answers, which came over the run's
encrypted control plane; whoever does not know it is hung up on, and whoever says nothing makes room for others. One
thread hears all callers, and who knows the nonce gets a thread of its own. Then the connection carries requests:

=======  =========================================================
echo     give back eight bytes, and this host's time
take     read so many bytes, then say that they have come
give     send so many bytes
both     send so many bytes, and read as many meanwhile, then say that they have come
=======  =========================================================
"""

from __future__ import annotations

import secrets
import selectors
import socket
import statistics
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from hmac import compare_digest
from typing import TYPE_CHECKING, Self, cast, final

from maniple.process.error import RunError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__: list[str] = []

ECHO, TAKE, GIVE, BOTH = b"e", b"t", b"g", b"b"
ECHOES = 100
"""How many times bytes go there and back for the latency."""
SMALLEST, LARGEST = 1 << 16, 1 << 28
"""Bytes that are sent for the bandwidth: from the first on twice as many, until they take `LONG_S`, or to the last."""
LONG_S = 0.2
NONCE = 16
TIMEOUT_S = 20.0
CONNECT_S = 2.0
MOST_CALLERS = 64
"""Connections that have not said the nonce; a further one takes the place of the oldest."""
_REQUEST = struct.Struct("<cQ")
_STAMP = struct.Struct("<q")
_CHUNK = 1 << 20


@final
class Answerer:
    """The end that answers, at some addresses of this host; a context that ends with its sockets closed.

    Args:
        addresses: where; nothing wider is bound.
        clock: tells this host's time in nanoseconds.
    """

    def __init__(self, addresses: list[str], clock: Callable[[], int] = time.time_ns) -> None:
        self.nonce = secrets.token_bytes(NONCE)
        self._clock = clock
        self._listeners = {address: socket.create_server((address, 0)) for address in addresses}
        self.ports = {address: int(one.getsockname()[1]) for address, one in self._listeners.items()}
        self._callers: dict[socket.socket, bytes] = {}  # what each has said, the oldest first
        self._ends, self._ended = socket.socketpair()
        self._thread = threading.Thread(target=self._welcome, name="answers callers", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()  # wakes the thread that hears callers
        self._thread.join()

    def _welcome(self) -> None:
        """Hear callers until this ends."""
        with self._ended, selectors.DefaultSelector() as ready:
            for one in (self._ended, *self._listeners.values()):
                one.setblocking(False)
                ready.register(one, selectors.EVENT_READ)
            while True:
                found = [cast("socket.socket", key.fileobj) for key, _ in ready.select()]
                if self._ended in found:
                    break
                for one in found:
                    if one in self._callers:
                        self._hear(one, ready)
                    elif one.fileno() >= 0:  # else another took its place meanwhile
                        self._accept(one, ready)
        for one in (*self._listeners.values(), *self._callers):
            one.close()

    def _accept(self, listener: socket.socket, ready: selectors.BaseSelector) -> None:
        if len(self._callers) == MOST_CALLERS:
            self._drop(next(iter(self._callers)), ready).close()
        with suppress(BlockingIOError, ConnectionError):  # it left already
            connection, _ = listener.accept()
            connection.setblocking(False)
            self._callers[connection] = b""
            ready.register(connection, selectors.EVENT_READ)

    def _hear(self, caller: socket.socket, ready: selectors.BaseSelector) -> None:
        """Take what a caller says: one that has said the nonce is answered, by a thread of its own, any other ends."""
        part = b""
        with suppress(OSError):
            part = caller.recv(NONCE - len(self._callers[caller]))
        self._callers[caller] += part
        if part and len(self._callers[caller]) < NONCE:
            return
        knows = compare_digest(self._callers[caller], self.nonce)
        self._drop(caller, ready)
        if knows:
            threading.Thread(target=self._answer, args=(caller,), daemon=True).start()
        else:
            caller.close()

    def _drop(self, caller: socket.socket, ready: selectors.BaseSelector) -> socket.socket:
        del self._callers[caller]
        ready.unregister(caller)
        return caller

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(TIMEOUT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(self.nonce)
            room = bytearray(_CHUNK)
            while True:
                what, count = _REQUEST.unpack(receive(connection, _REQUEST.size))
                if what == ECHO:
                    connection.sendall(_STAMP.pack(self._clock()))
                elif what == TAKE:
                    _drain(connection, count, room)
                    connection.sendall(b".")
                elif what == GIVE:
                    _pour(connection, count, room)
                else:
                    _pour_and_drain(connection, count, room)
                    connection.sendall(b".")


@final
@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured between two hosts.

    Args:
        latency_s: half of the median time there and back.
        there: bytes per second to the end that answers.
        back: bytes per second from it.
        both: bytes per second each way while as many go the other way, as in an exchange.
        ahead_s: how far its clock is ahead.
    """

    latency_s: float
    there: float
    back: float
    both: float
    ahead_s: float


def dial(address: str, port: int, nonce: bytes, own: str | None = None) -> socket.socket:
    """Connect to the end that answers.

    Args:
        address: where it is.
        port: likewise.
        nonce: what it is known by, and knows this end by.
        own: the address of this host to leave from; None for that of the route.

    Raises:
        OSError: nothing is there.
        RunError: something else answers there.
    """
    connection = socket.create_connection((address, port), CONNECT_S, None if own is None else (own, 0))
    try:
        connection.settimeout(TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(nonce)
        told = receive(connection, NONCE)
    except OSError as error:
        connection.close()
        raise RunError(
            f"{address} is another computer's address, too: what answers there is not of this run"
        ) from error
    if not compare_digest(told, nonce):
        connection.close()
        raise RunError(f"{address} is another computer's address, too: what answers there is not of this run")
    return connection


def measure(connection: socket.socket, largest: int = LARGEST, clock: Callable[[], int] = time.time_ns) -> Measured:
    """Measure over a connection to the end that answers.

    Args:
        connection: from `dial`.
        largest: bytes that are sent at most at once.
        clock: tells this host's time in nanoseconds.

    Raises:
        OSError: the connection broke.
    """
    trips: list[tuple[int, float]] = []
    for _ in range(ECHOES):
        before, start = clock(), time.perf_counter_ns()
        connection.sendall(_REQUEST.pack(ECHO, 0))
        (theirs,) = _STAMP.unpack(receive(connection, _STAMP.size))
        trip = time.perf_counter_ns() - start
        trips.append((trip, theirs - before - trip / 2))
    latency = statistics.median(trip for trip, _ in trips) / 2e9
    there, back, both = (_rate(connection, what, largest) for what in (TAKE, GIVE, BOTH))
    return Measured(latency, there, back, both, min(trips)[1] / 1e9)


def _rate(connection: socket.socket, what: bytes, largest: int) -> float:
    """Give the bytes per second of one direction, or of each at once, from the longest of transfers that grow."""
    room, count = bytearray(_CHUNK), SMALLEST
    while True:
        start = time.perf_counter()
        connection.sendall(_REQUEST.pack(what, count))
        if what == TAKE:
            _pour(connection, count, room)
            receive(connection, 1)
        elif what == GIVE:
            _drain(connection, count, room)
        else:
            _pour_and_drain(connection, count, room)
            receive(connection, 1)
        taken = time.perf_counter() - start
        if taken >= LONG_S or 2 * count > largest:
            return count / taken
        count *= 2


def receive(connection: socket.socket, count: int) -> bytes:
    """Receive so many bytes.

    Args:
        connection: from there.
        count: how many.

    Raises:
        ConnectionError: it ended before.
    """
    found = bytearray()
    while len(found) < count:
        part = connection.recv(count - len(found))
        if not part:
            raise ConnectionError("the other end hung up")
        found += part
    return bytes(found)


def _drain(connection: socket.socket, count: int, room: bytearray) -> None:
    view = memoryview(room)
    while count:
        taken = connection.recv_into(view[: min(count, len(room))])
        if not taken:
            raise ConnectionError("the other end hung up")
        count -= taken


def _pour(connection: socket.socket, count: int, room: bytearray) -> None:
    view = memoryview(room)
    while count:
        step = min(count, len(room))
        connection.sendall(view[:step])
        count -= step


def _pour_and_drain(connection: socket.socket, count: int, room: bytearray) -> None:
    pouring = threading.Thread(target=_pour, args=(connection, count, bytearray(_CHUNK)), daemon=True)
    pouring.start()
    _drain(connection, count, room)
    pouring.join()
