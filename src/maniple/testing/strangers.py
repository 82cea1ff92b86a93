"""Strangers: what calls at the port of a rank, or answers in its place, and is no rank of the run.

==========  =======================================================================
stranger    what it does
==========  =======================================================================
flood       connects again and again, and says nothing, half a greeting or whatever bytes
silent      holds open more connections than a rank keeps, and says nothing
wrong key   greets as a rank of the run would, with the proof of another run
stale peer  is a rank of an older run, in the place of a receiver
==========  =======================================================================
"""

from __future__ import annotations

import random
import socket
import threading
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self, final

import zmq

from maniple.runtime.transports import proof
from maniple.runtime.transports.streams.tile_streams import MOST_CALLERS
from maniple.runtime.transports.transport import LOOPBACK, Guard
from maniple.runtime.transports.zeromq import ZmqTransport, make_socket

if TYPE_CHECKING:
    from types import TracebackType

__all__: list[str] = []

CALLERS = ("flood", "silent", "wrong key")
"""What can call at a port of a run, which goes on."""
STALE = "stale peer"
_PAUSE_S = 0.005
_ZMTP = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"PLAIN".ljust(20, b"\0") + bytes(32)


class Presence(ABC):
    """A context whose thread is what a stranger does."""

    def __init__(self) -> None:
        self.met = threading.Event()
        """Set once the run has had to do with it."""
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._be, name="stranger", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._thread.join()

    @abstractmethod
    def _be(self) -> None:
        """Do it until it is left."""


@final
class Strangers(Presence):
    """What calls at a port for tiles, until it is left.

    Args:
        kind: one of `CALLERS`.
        port: where they call.
        pair: the sender that a wrong key speaks for, and the receiver whose port it is.
        seed: of what they say.
        framed: whether the port is ZeroMQ's; else it is one for streams.
    """

    def __init__(self, kind: str, port: int, pair: tuple[int, int], seed: int, *, framed: bool) -> None:
        super().__init__()
        self._kind, self._port, self._pair, self._framed = kind, port, pair, framed
        self._draw = random.Random(seed)

    def _be(self) -> None:
        if self._kind == "silent":
            with ExitStack() as held:
                for _ in range(MOST_CALLERS + 8):
                    with suppress(OSError):
                        held.enter_context(self._connect())
                        self.met.set()
                self._left.wait()
            return
        while not self._left.wait(_PAUSE_S):
            with suppress(OSError):
                if self._kind == "flood":
                    self._say_anything()
                elif self._framed:
                    self._knock()
                else:
                    self._greet()

    def _connect(self) -> socket.socket:
        return socket.create_connection((LOOPBACK, self._port), 1.0)

    def _say_anything(self) -> None:
        with self._connect() as link:
            self.met.set()
            whole = _ZMTP if self._framed else self._greeting(bytes(proof.NONCE))
            said = self._draw.choice((b"", whole[: self._draw.randrange(len(whole))], self._draw.randbytes(200)))
            link.sendall(said)

    def _greet(self) -> None:
        with self._connect() as link:
            asked = link.recv(proof.NONCE, socket.MSG_WAITALL)
            link.sendall(self._greeting(asked))
            if not link.recv(1):
                self.met.set()

    def _greeting(self, asked: bytes) -> bytes:
        return proof.stream_greeting("another key", asked, self._pair, 0, self._draw.randbytes(proof.NONCE))

    def _knock(self) -> None:
        """Be a sender of ZeroMQ's with a key of another run, until that is refused."""
        with zmq.Context() as context, make_socket(context, zmq.DEALER) as dealer:
            proof.be_sender(dealer, "another key", *self._pair)
            refused = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_DISCONNECTED
            monitor = dealer.get_monitor_socket(refused)
            dealer.connect(f"tcp://{LOOPBACK}:{self._port}")
            with suppress(zmq.Again):  # refused already
                dealer.send_multipart([proof.COUNT.pack(0) + b"head", b"body"], zmq.NOBLOCK)
            while not self._left.is_set():
                if monitor.poll(50):
                    self.met.set()
                    break
            dealer.disable_monitor()
            monitor.close(linger=0)


@final
class StaleRank(Presence):
    """A rank of another run, in the place of one of this.

    Args:
        rank: whose place it has.
        size: number of ranks.
        guard: what guards tiles.
    """

    def __init__(self, rank: int, size: int, guard: Guard) -> None:
        super().__init__()
        self._transport = ZmqTransport(rank, size, "another run", guard=guard)

    def port(self, *, framed: bool) -> str:
        """Give where it takes messages, or streams, of which it has one unless tiles are encrypted."""
        where, _, told = self._transport.endpoint.partition("#")
        return where.rpartition(":")[2] if framed else told.partition(":")[2]

    def _be(self) -> None:
        self.met.set()
        while not self._left.is_set():
            self._transport.poll(0.05)
        self._transport.close()
