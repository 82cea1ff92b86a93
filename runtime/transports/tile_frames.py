"""Tile frames: how the bytes of a tile are frames of its message, as many as keep each of them short.

A message of a tile ends with one of these, and with a seal behind it where messages are sealed:

    payload                            of at most 1 MiB
    size, payload, payload ...         of more: `size` bytes in all
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import zmq

from maniple.process.error import RunError
from maniple.runtime.transports.proof import SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

MAX_PAYLOAD = 2**31
"""Bytes of one tile; a larger one is refused before it is sent."""
TILE_FRAME = 1 << 20
"""Bytes of one frame of a tile: what a stranger can have a rank hold, so larger tiles go in several."""


def send_frames(socket: zmq.Socket[bytes], payload: memoryview, last: int) -> None:
    """Send a tile's bytes in frames that refer to them.

    Args:
        socket: whose message was begun.
        payload: the tile.
        last: the flags of the last frame.
    """
    if payload.nbytes <= TILE_FRAME:
        socket.send(payload, zmq.NOBLOCK | last, copy=False)
        return
    told = payload.cast("B")
    socket.send(SIZE.pack(told.nbytes), zmq.NOBLOCK | zmq.SNDMORE)
    for start in range(0, told.nbytes, TILE_FRAME):
        more = zmq.SNDMORE if start + TILE_FRAME < told.nbytes else last
        socket.send(told[start : start + TILE_FRAME], zmq.NOBLOCK | more, copy=False)


def receive_frames(
    router: zmq.Socket[bytes], room: Callable[[int], memoryview], rank: int, *, sealed: bool
) -> tuple[memoryview | None, bytes | None]:
    """Take the frames of a tile, if there are any, and the seal behind it.

    Args:
        router: whose message has further frames.
        room: gives the bytes for a tile of a size.
        rank: whose socket it is.
        sealed: whether the last frame is a seal.

    Raises:
        RunError: they are not as many bytes as they say.
    """
    whole = router.recv(zmq.NOBLOCK, copy=False)
    if not router.getsockopt(zmq.RCVMORE):
        return (None, whole.bytes) if sealed else (whole.buffer, None)
    part = router.recv(zmq.NOBLOCK, copy=False)
    if sealed and not router.getsockopt(zmq.RCVMORE):
        return whole.buffer, part.bytes
    size = SIZE.unpack(whole.buffer)[0] if whole.buffer.nbytes == SIZE.size else MAX_PAYLOAD + 1
    tile = memoryview(bytearray()) if size > MAX_PAYLOAD else room(size)
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
        raise RunError(f"rank {rank}: expected a tile of {size} bytes, got {came}; the wire is broken")
    return tile, part.bytes if sealed else None
