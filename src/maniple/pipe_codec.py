"""Frames: messages on a pipe between processes of one search, each a length of four bytes and a msgpack list."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast, final

import msgpack

from maniple.process.error import RunError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__: list[str] = []

MOST = 1 << 28
"""No message has more bytes."""
PIECE = 1 << 20


def send(pipe: int, *message: object) -> None:
    """Write a message to a pipe, whole.

    Raises:
        BrokenPipeError: nobody reads it any more.
    """
    rest = memoryview(_pack(message))
    while rest:
        rest = rest[os.write(pipe, rest) :]


@final
class Outbox:
    """What is still to go into a pipe whose other end may be slow to read: nothing here waits for it.

    Args:
        pipe: the descriptor to write; from here on it does not block.
    """

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self._bytes = bytearray()
        os.set_blocking(pipe, False)

    def put(self, *message: object) -> None:
        """Add a message."""
        self._bytes += _pack(message)

    def flush(self) -> bool:
        """Write what the pipe takes now; gives whether nothing is left.

        Raises:
            BrokenPipeError: nobody reads it any more.
        """
        while self._bytes:
            try:
                del self._bytes[: os.write(self.pipe, self._bytes)]
            except BlockingIOError:
                return False
        return True


@final
class Inbox:
    """What has come from a pipe.

    Args:
        pipe: the descriptor to read.
    """

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self._bytes = bytearray()

    def receive(self) -> bool:
        """Read what is there, or wait for something; gives whether the other end is still open."""
        found = os.read(self.pipe, PIECE)
        self._bytes += found
        return bool(found)

    def messages(self) -> Iterator[list[object]]:
        """The messages that have come whole.

        Raises:
            RunError: the bytes are no messages.
        """
        while len(self._bytes) >= 4 and (message := self._first()) is not None:
            yield message

    def _first(self) -> list[object] | None:
        size = int.from_bytes(self._bytes[:4], "big")
        if size > MOST:
            raise RunError(f"search process: expected a message of at most {MOST} bytes, got {size}")
        if len(self._bytes) < 4 + size:
            return None
        try:
            found: object = msgpack.unpackb(bytes(self._bytes[4 : 4 + size]))
        except (ValueError, msgpack.UnpackException) as error:
            raise RunError(f"search process: expected a msgpack list, got bytes that are none ({error})") from error
        del self._bytes[: 4 + size]
        if not isinstance(found, list) or not found:
            raise RunError(f"search process: expected a list with a kind, got {type(found).__name__}")
        return found


def _pack(message: tuple[object, ...]) -> bytes:
    packed = cast("bytes", msgpack.packb(message))
    return len(packed).to_bytes(4, "big") + packed
