"""A link with a fault: passes connections on to where they are meant to go, and does one thing wrong.

It knows ZMTP (RFC 23) as far as frames go: 64 bytes of greeting, then frames of a flag, a size and a body; those that
carry no command belong to messages. A fault meets one message of one connection towards the endpoint; on a stream,
which has none, one of the pieces of up to 64 KiB in which its bytes come.

==========  =======================================================================
fault       what becomes of the message, or of the link from then on
==========  =======================================================================
drop        it does not arrive
duplicate   it arrives twice
reorder     it arrives after the next one
delay       it arrives late, and what follows after it
corrupt     one of its bytes is another
malformed   a frame that nobody sent arrives before it
cut         the connection ends in its middle; who dials again is served
cut off     the connection ends in its middle, and so does every later one
stall       neither it nor what follows arrives, in either direction; nothing ends
==========  =======================================================================
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__: list[str] = []

WIRE_FAULTS = ("drop", "duplicate", "reorder", "delay", "corrupt", "malformed", "cut", "cut off", "stall")
"""What can go wrong with a link."""
_HERE = "127.0.0.1"
PIECE = 64 << 10
"""Bytes of a stream that a fault meets at once, at most."""
_GREETING, _MORE, _LONG, _COMMAND = 64, 1, 2, 4


@final
@dataclass(frozen=True, slots=True)
class LinkFault:
    """What goes wrong on a link.

    Args:
        kind: one of `WIRE_FAULTS`.
        connection: which connection of the link, from 0.
        message: which message of it, from 0.
        seconds: how long a delay takes.
        place: which byte of a message another is written to, as a share of its last frame.
    """

    kind: str
    connection: int = 0
    message: int = 0
    seconds: float = 1.0
    place: float = 0.5


@final
class FaultLink:
    """A link to an endpoint; a context that ends with all its sockets closed.

    Args:
        endpoint: where it leads, `tcp://HOST:PORT`.
        fault: what goes wrong; None for a link that is sound.
        framed: whether its connections are ZeroMQ's; else they are streams of bytes.
    """

    def __init__(self, endpoint: str, fault: LinkFault | None = None, *, framed: bool = True) -> None:
        self._framed = framed
        self._port = int(endpoint.rpartition(":")[2])
        self._fault = fault
        self.met = threading.Event()
        """Set once the fault has met its message."""
        self._closed = threading.Event()
        self._stalled = threading.Event()
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._count = 0
        self._server = socket.create_server((_HERE, 0))
        self.endpoint = f"tcp://{_HERE}:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._end_server()
        self.break_connections()

    def break_connections(self) -> None:
        """End every connection that there is, between whatever they carry; who dials again is served."""
        with self._lock:
            for each in self._sockets:
                _end(each)

    def _end_server(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                try:
                    far = socket.create_connection((_HERE, self._port), 10)
                except OSError:  # nobody is there any more
                    _end(near)
                    continue
                far.settimeout(None)
                for each in (near, far):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._sockets += [near, far]
                    number, self._count = self._count, self._count + 1
                if self._closed.is_set():
                    _end(near)
                    _end(far)
                    return
                threading.Thread(target=self._pass_on, args=(near, far, number), daemon=True).start()
                threading.Thread(target=self._pass_back, args=(far, near), daemon=True).start()

    def _pass_back(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while part := source.recv(1 << 16):
                if self._stalled.is_set():
                    self._closed.wait()
                target.sendall(part)
        _end(target)

    def _pass_on(self, source: socket.socket, target: socket.socket, number: int) -> None:
        fault = self._fault if self._fault is not None and self._fault.connection == number else None
        with suppress(OSError, EOFError), source.makefile("rb") as stream:
            left = _GREETING if self._framed else 0  # whose parts wait for each other
            while left:
                part = stream.read1(left)
                if not part:
                    raise EOFError
                target.sendall(part)
                left -= len(part)
            at, held = 0, b""
            while True:
                message, counts = _message(stream.read) if self._framed else (_piece(stream.read1), True)
                if self._stalled.is_set():
                    self._closed.wait()
                hit = fault is not None and counts and at == fault.message
                out = self._spoil(message, target) if hit else message
                if hit and fault is not None and fault.kind == "reorder":
                    held, out = message, b""
                elif held and counts:
                    out, held = out + held, b""
                target.sendall(out)
                at += counts
        _end(target)
        _end(source)

    def _spoil(self, message: bytes, target: socket.socket) -> bytes:
        """Do to a message what the fault does; gives what goes on.

        Raises:
            EOFError: the connection ends here.
        """
        fault = self._fault
        if fault is None:
            return message
        self.met.set()
        if fault.kind == "drop":
            return b""
        if fault.kind == "duplicate":
            return message + message
        if fault.kind == "delay":
            self._closed.wait(fault.seconds)
        elif fault.kind == "corrupt":
            start, size = _last_body(message) if self._framed else (0, len(message))
            changed = bytearray(message)
            if size:
                changed[start + min(size - 1, int(fault.place * size))] ^= 0x20
            return bytes(changed)
        elif fault.kind == "malformed":
            return b"\x00\x05wrong" + message
        elif fault.kind == "stall":
            self._stalled.set()
            self._closed.wait()
        elif fault.kind in {"cut", "cut off"}:
            target.sendall(message[: len(message) // 2])
            if fault.kind == "cut off":
                self._end_server()
            raise EOFError
        return message


def _message(read: Callable[[int], bytes]) -> tuple[bytes, bool]:
    """Read the frames of a message, or a command; says whether it is a message."""
    found = bytearray()
    while True:
        flags = _read(read, 1)[0]
        head = _read(read, 8 if flags & _LONG else 1)
        found += bytes([flags]) + head + _read(read, int.from_bytes(head, "big"))
        if flags & _COMMAND or not flags & _MORE:
            return bytes(found), not flags & _COMMAND


def _piece(read: Callable[[int], bytes]) -> bytes:
    """Read what has come of a stream."""
    found = read(PIECE)
    if not found:
        raise EOFError
    return found


def _last_body(message: bytes) -> tuple[int, int]:
    """Give where the body of a message's last frame starts, and its size."""
    at = 0
    while True:
        flags = message[at]
        width = 8 if flags & _LONG else 1
        size = int.from_bytes(message[at + 1 : at + 1 + width], "big")
        if not flags & _MORE:
            return at + 1 + width, size
        at += 1 + width + size


def _read(read: Callable[[int], bytes], count: int) -> bytes:
    found = read(count)
    if len(found) < count:
        raise EOFError
    return found


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        each.close()
