"""A transport of one's own: tiles travel through Unix sockets; ranks tell each other the paths of theirs at the join.

python examples/custom_transport.py
maniple run --nodes 2 --transport unix train.py    # once a package announces unix = "custom_transport:UnixTransport"
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from tempfile import TemporaryDirectory

from maniple.plugins import TRANSPORTS, Delivery, InboxTransport


class UnixTransport(InboxTransport):
    """A socket to each peer and a thread for what comes from each, in a folder that no other user may enter."""

    way = "Unix sockets"
    head = struct.Struct("<IIq")  # the sender, the size of the header, and that of the payload: -1 for none

    def __init__(self, rank: int, size: int, token: str, interface: str = "") -> None:
        super().__init__(rank, size, token, interface)
        self.endpoint = f"{self.closing.enter_context(TemporaryDirectory())}/tiles"
        self._server = self.closing.enter_context(socket.socket(socket.AF_UNIX))
        self._server.bind(self.endpoint)
        self._server.listen(size)
        self.closing.callback(self._server.shutdown, socket.SHUT_RDWR)  # ends the threads that nobody called
        self._links: dict[int, socket.socket] = {}
        for _ in range(size - 1):
            threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        with suppress(OSError, EOFError), self._server.accept()[0] as link, link.makefile("rb") as stream:
            while stream.peek(1):  # until the peer closes its end
                peer, header, size = self.head.unpack(self.read_whole(stream, self.head.size))
                head, payload = self.read_whole(stream, header), self.read_whole(stream, max(0, size))
                self.deliver(Delivery(peer, head, None if size < 0 else memoryview(payload)))

    def send(self, peer: int, header: bytes, payload: memoryview | None, account: int) -> None:
        """Write to the peer's socket, which is called at the first send."""
        self.check_peer(peer)
        if peer not in self._links:
            self._links[peer] = self.closing.enter_context(socket.socket(socket.AF_UNIX))
            self._links[peer].connect(self.endpoints[peer])
        size = -1 if payload is None else payload.nbytes
        self._links[peer].sendall(self.head.pack(self.rank, len(header), size) + header)
        self._links[peer].sendall(payload or b"")
        self.meter.add(account, max(0, size))


if __name__ == "__main__":
    from three_steps import compare

    TRANSPORTS.register("unix", UnixTransport)
    compare(__file__, transport="unix")
