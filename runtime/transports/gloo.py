"""Gloo: large tiles through torch.distributed, for those who have a network that Gloo knows, or torch's own tools."""

from __future__ import annotations

import struct
import threading
from contextlib import suppress
from datetime import timedelta
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from maniple.process.error import RunError
from maniple.runtime.transports.transport import LOOPBACK, Delivery, Transport
from maniple.runtime.transports.zeromq import ZmqTransport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.transports.gloo_group import GlooGroup

__all__: list[str] = []

LEAST = 256 << 10
"""Bytes of a tile from which on Gloo carries it: for less, its handshake costs more than a copy."""
GRACE_S = 15.0
"""How long a broken connection is no error yet: who supervises the ranks knows sooner, and better, which one died."""
LINGER_S = 1.0
"""How long closing waits for tiles on their way."""
_SIZE = struct.Struct("<Q")


class GlooTransport(Transport):
    """Headers and small tiles through ZeroMQ, tiles of `least` bytes and more through torch.distributed's Gloo.

    A pair of ranks uses Gloo as NCCL can be used, too: sends and receives of a pair meet in the order in which they
    were begun, no tags are told apart, and no receive is begun for a tile that is not on its way:

        sender     begins to send a tile, then sends its size and header through ZeroMQ
        receiver   hears of the tile, begins to receive it, and holds back what comes behind it from that sender

    The endpoint of a rank is that of ZeroMQ and the addresses of Gloo's sockets, which bind to the interface and reach
    the other ranks over the control plane alone. Gloo itself asks nobody for a proof.

    Args:
        rank: see `Transport`.
        size: likewise.
        token: likewise.
        interface: the address to bind to.
        least: bytes of the smallest tile that Gloo carries.

    Raises:
        RunError: torch has no Gloo, or it cannot bind there.
    """

    way = "Gloo"

    def __init__(self, rank: int, size: int, token: str, interface: str = LOOPBACK, *, least: int = LEAST) -> None:
        from maniple.runtime.transports.gloo_group import GlooGroup  # torch, which a launcher does without

        super().__init__(rank, size, token, interface)
        self._messages = ZmqTransport(rank, size, token, interface)
        self._least = least
        self._closed = False
        self._broken: tuple[float, str] | None = None
        self._came: SimpleQueue[Delivery] = SimpleQueue()
        self._arriving: dict[int, SimpleQueue[tuple[bytes, Any, memoryview | None] | None]] = {}
        self._behind = [0] * size  # messages of each that are on their way through its thread
        self._tiles_behind = [0] * size  # those of them with a payload
        self._leaving: SimpleQueue[tuple[int, Any, memoryview] | None] = SimpleQueue()
        self._awaited: dict[threading.Thread, Any] = {}  # by thread, the work that it waits for now
        try:
            self._group: GlooGroup | None = GlooGroup(rank, size, interface)
        except BaseException:
            self._messages.close()
            raise
        self.endpoint = f"{self._messages.endpoint} {self._group.address.hex()}"
        self._begin(threading.Thread(target=self._let_go, name=f"gloo {rank} sends", daemon=True))

    def connect(self, endpoints: Sequence[str]) -> None:
        """See `Transport.connect`."""
        super().connect(endpoints)
        parts = [endpoint.partition(" ") for endpoint in endpoints]
        self._messages.connect([zeromq for zeromq, _, _ in parts])
        if self._group is not None:
            self._group.meet([bytes.fromhex(address) for _, _, address in parts])

    def send(self, peer: int, header: bytes, payload: memoryview | None, account: int) -> None:
        """See `Transport.send`."""
        self.check_peer(peer)
        group = self._group
        if self._closed or group is None:
            raise RunError(f"rank {self.rank}: the transport is closed")
        if payload is None or payload.nbytes < self._least:
            self._messages.send(peer, _SIZE.pack(0) + header, payload, account)
        else:
            try:
                work = group.send(payload, peer)
            except RunError:  # the ranks were never connected
                raise
            except RuntimeError as error:
                self._note_break(peer, error)
            else:
                self._leaving.put((peer, work, payload))
                self._messages.send(peer, _SIZE.pack(payload.nbytes) + header, None, account)
        if payload is not None:
            self.meter.add(account, payload.nbytes)

    def poll(self, timeout_s: float | None) -> list[Delivery]:
        """See `Transport.poll`."""
        if self._broken is not None:
            since, said = self._broken
            left_s = since + GRACE_S - monotonic()
            if left_s <= 0:
                raise RunError(f"rank {self.rank}: {said}")
            timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        found: list[Delivery] = []
        self._collect(found)
        for message in self._messages.poll(0 if found else timeout_s):
            self._take(message, found)
        self._collect(found)
        return found

    def wake(self) -> None:
        """See `Transport.wake`."""
        self._messages.wake()

    def close(self) -> None:
        """See `Transport.close`.

        No thread may be inside of torch when the interpreter ends. What is on its way gets a moment; then its
        connections are cut, which is what Gloo does where a wait with a limit is over.
        """
        self._closed = True
        self._messages.close()
        self._leaving.put(None)
        for queue in self._arriving.values():
            queue.put(None)
        end = monotonic() + LINGER_S
        for thread in tuple(self._awaited):
            thread.join(max(0.0, end - monotonic()))
        for thread in tuple(self._awaited):
            while thread.is_alive():
                if (work := self._awaited[thread]) is not None:
                    with suppress(RuntimeError):
                        work.wait(timedelta(milliseconds=1))
                thread.join(0.01)
        if self._group is not None:
            self._group.leave()
            self._group = None

    def _begin(self, thread: threading.Thread) -> None:
        self._awaited[thread] = None
        thread.start()

    def _collect(self, found: list[Delivery]) -> None:
        """Take what the threads have put together."""
        while not self._came.empty():
            delivery = self._came.get()
            self._behind[delivery.peer] -= 1
            self._tiles_behind[delivery.peer] -= delivery.payload is not None
            found.append(delivery)

    def _take(self, message: Delivery, found: list[Delivery]) -> None:
        """Hand a message on, or begin to receive its tile; what is behind a tile waits for it."""
        peer, group = message.peer, self._group
        size, header = _SIZE.unpack_from(message.header)[0], message.header[_SIZE.size :]
        if not size and not self._behind[peer]:
            found.append(Delivery(peer, header, message.payload))
            return
        if group is None:
            raise RunError(f"rank {self.rank}: the transport is closed")
        work, tile = None, message.payload
        if size:
            tile = self.room(peer, size, found, self._tiles_behind[peer])
        try:
            if tile is not None and size:
                work = group.receive(tile, peer)
        except RunError:
            raise
        except RuntimeError as error:
            self._note_break(peer, error)
            self._behind[peer] += 1  # what is behind it stays there
            return
        if peer not in self._arriving:
            self._arriving[peer] = SimpleQueue()
            name = f"gloo {self.rank} from {peer}"
            self._begin(threading.Thread(target=self._put_together, args=(peer,), name=name, daemon=True))
        self._behind[peer] += 1
        self._tiles_behind[peer] += tile is not None
        self._arriving[peer].put((header, work, tile))

    def _put_together(self, peer: int) -> None:
        """Wait for a peer's tiles in their order; of what has no tile, behind one, nothing is waited for."""
        queue = self._arriving[peer]
        while (next_one := queue.get()) is not None:
            header, work, tile = next_one
            if work is not None and not self._is_over(peer, work):
                return
            self._came.put(Delivery(peer, header, tile))
            self.wake()

    def _let_go(self) -> None:
        """Hold what is sent until it is gone, in the order in which it was begun."""
        while (next_one := self._leaving.get()) is not None:
            peer, work, _ = next_one
            if not self._is_over(peer, work):
                return

    def _is_over(self, peer: int, work: Any) -> bool:
        """Wait for what Gloo does; False where it broke."""
        thread = threading.current_thread()
        self._awaited[thread] = work
        try:
            work.wait()
        except RuntimeError as error:
            self._note_break(peer, error)
            return False
        finally:
            self._awaited[thread] = None
        return True

    def _note_break(self, peer: int, error: RuntimeError) -> None:
        """Take note that Gloo has lost a rank, which torch says by an error."""
        self.note_break(f"the connection of Gloo with rank {peer} broke: {str(error).splitlines()[0]}")

    def note_break(self, said: str) -> None:
        """Take note of what broke; polls say so when `GRACE_S` is over. From any thread."""
        if self._broken is None:
            self._broken = monotonic(), said
        if not self._closed:
            self.wake()
