"""Outlets: the ends of streams that send tiles, from dialling and proving themselves on."""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from hmac import compare_digest
from secrets import token_bytes
from typing import final

import zmq

from maniple.process.error import RunError
from maniple.runtime.transports.proof import DIGEST, NONCE, receiver_proof, stream_greeting
from maniple.runtime.transports.redial import LOOK_S

__all__: list[str] = []

_LINGER_S = 1.0


@final
class Outlet:
    """A rank's end of its stream to a peer.

    Args:
        poller: is woken by the stream.
        rank: this rank.
        peer: the other.
        place: host and port of the peer's listener.
        key: the peer's.
    """

    def __init__(self, poller: zmq.Poller, rank: int, peer: int, place: tuple[str, int], key: str) -> None:
        self.is_up = self.broke = False
        self.since: float | None = None
        """Since when it is broken."""
        self._tried = -LOOK_S
        self.waiting: deque[memoryview] = deque()
        self._poller, self._rank, self._peer, self._place, self._key = poller, rank, peer, place, key
        self._link: socket.socket | None = None
        self._clogged = False
        self._sent = 0
        self._nonce = b""
        self._heard = b""

    def dial(self, now: float) -> int | None:
        """Begin to connect; gives the descriptor of the connection, None where there is one already, or can be none."""
        if self._link is not None or now - self._tried < LOOK_S:
            return None
        self._tried, self._nonce, self._heard = now, b"", b""
        try:
            link = socket.socket(socket.AF_INET6 if ":" in self._place[0] else socket.AF_INET)
        except OSError:  # too many open files: tiles go as messages do
            return None
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        link.connect_ex(self._place)
        self._link = link
        self._poller.register(link.fileno(), zmq.POLLIN)
        return link.fileno()

    def serve(self) -> bool:
        """Go on with what the stream is ready for; says whether there still is a connection.

        Raises:
            RunError: what answers is not the peer.
        """
        link = self._link
        if link is None:
            return False
        heard: bytes | None = None
        try:
            heard = link.recv(NONCE + DIGEST - len(self._heard) or 1)
        except BlockingIOError:
            pass
        except OSError:
            heard = b""
        if heard == b"" or (heard and self.is_up):  # it ended, or says what no peer says
            self._end()
            return False
        if heard:
            self._heard += heard
            self._prove(link)
        if self.is_up:
            self._flush()
        return self._link is not None

    def send(self, head: bytes, payload: memoryview) -> None:
        """Send a tile behind those before; what does not fit into the socket goes as it drains."""
        goes = self.is_up and not self.waiting
        self.waiting += (memoryview(head), payload.cast("B"))
        if goes:
            self._flush()

    def close(self) -> None:
        """End it, once what waits has gone, or after a second."""
        if self._link is not None and self.is_up and self.waiting:
            self._link.settimeout(_LINGER_S)
            with suppress(OSError):
                for part in self.waiting:
                    self._link.sendall(part)
        self.waiting.clear()
        self._end()

    def _prove(self, link: socket.socket) -> None:
        if not self._nonce and len(self._heard) >= NONCE:
            self._nonce = token_bytes(NONCE)
            asked, ends = self._heard[:NONCE], (self._rank, self._peer)
            with suppress(OSError):  # broken already, as the next look says
                link.send(stream_greeting(self._key, asked, ends, self._sent, self._nonce))
        if len(self._heard) == NONCE + DIGEST:
            expected = receiver_proof(self._key, self._nonce, self._rank, self._peer)
            if not compare_digest(self._heard[NONCE:], expected):
                raise RunError(
                    f"rank {self._rank}: what answers at {self._place[0]}:{self._place[1]} does not know the key of "
                    f"rank {self._peer}: it is no rank of this run; see to addresses and routes between their hosts"
                )
            self.is_up, self.broke, self.since = True, False, None

    def _flush(self) -> None:
        """Give the socket what it takes."""
        link, waiting = self._link, self.waiting
        if link is None:
            return
        fits = True
        while waiting and fits:
            try:
                sent = link.sendmsg([waiting[0]] if len(waiting) == 1 else [waiting[0], waiting[1]])
            except BlockingIOError:
                fits = False
                break
            except OSError:
                self._end()
                return
            self._sent += sent
            while waiting and sent >= waiting[0].nbytes:
                sent -= waiting.popleft().nbytes
            if sent:
                waiting[0] = waiting[0][sent:]
        if fits == self._clogged:
            self._clogged = not fits
            self._poller.register(link.fileno(), zmq.POLLIN | (0 if fits else zmq.POLLOUT))

    def _end(self) -> None:
        if self._link is not None:
            self._poller.unregister(self._link.fileno())
            self._link.close()
        self._clogged = False
        self.broke |= self.is_up
        self._link, self.is_up = None, False
