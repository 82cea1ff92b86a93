"""A stranger at a port: speaks ZMTP 3.1 (RFC 37) by hand, so that it can say what no ZeroMQ would."""

from __future__ import annotations

import socket
from typing import Self

from maniple.runtime.transports.zeromq import LOOPBACK

MORE, LAST, LONG, COMMAND = 0x01, 0x00, 0x02, 0x04


class Stranger:
    """A connection that says what it likes, until the other end closes it.

    Args:
        endpoint: where to knock.
        mechanism: what it claims to speak.
    """

    def __init__(self, endpoint: str, mechanism: bytes = b"NULL") -> None:
        self._socket = socket.create_connection((LOOPBACK, int(endpoint.rpartition(":")[2])), 10)
        self._socket.settimeout(10)
        self.closed = False
        self.sent = 0
        self.say(b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def say(self, data: bytes) -> None:
        """Send bytes, unless the other end has closed."""
        if self.closed:
            return
        try:
            self._socket.sendall(data)
            self.sent += len(data)
        except OSError:
            self.closed = True

    def ready(self, kind: bytes = b"DEALER") -> None:
        """Claim that the handshake is over."""
        body = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
        self.say(bytes((COMMAND, len(body))) + body)

    def frame(self, body: bytes, *, more: bool = False) -> None:
        """Send a frame."""
        flag = MORE if more else LAST
        if len(body) < 256:
            self.say(bytes((flag, len(body))) + body)
        else:
            self.say(bytes((flag | LONG,)) + len(body).to_bytes(8, "big") + body)

    def is_let_go(self) -> bool:
        """Whether the other end closes the connection within 20 s."""
        self._socket.settimeout(20)
        try:
            while self._socket.recv(4096):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True
