"""A tile engine for tests: the thread of a rank that alone sends and takes tiles, as that of the runtime does."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, final

from maniple.process.error import RunError

if TYPE_CHECKING:
    from maniple.runtime.control.control import Control
    from maniple.runtime.transports.transport import Transport

__all__: list[str] = []


@final
class TileEngine:
    """Sends what it is given, and keeps what came: a broken connection is mended while the program computes.

    Args:
        transport: the wire.
        control: is told of what ends it.
    """

    def __init__(self, transport: Transport, control: Control) -> None:
        self.failure: RunError | None = None
        self.came: dict[tuple[int, int], bytes] = {}
        """Tiles by sender and turn."""
        self.changed = threading.Condition()
        self._transport = transport
        self._control = control
        self._outbox: deque[tuple[int, int, memoryview]] = deque()
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def send(self, peer: int, turn: int, payload: memoryview) -> None:
        """Send a tile to a rank, which nobody changes from now on."""
        self._outbox.append((peer, turn, payload))
        self._transport.wake()

    def close(self) -> None:
        """End the thread."""
        self._ends = True
        self._transport.wake()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ends:
                while self._outbox:
                    peer, turn, payload = self._outbox.popleft()
                    self._transport.send(peer, b"%d" % turn, payload, turn)
                found = self._transport.poll(None)
                with self.changed:
                    for delivery in found:
                        self.came[delivery.peer, int(delivery.header)] = bytes(delivery.payload or b"")
                    self.changed.notify_all()
        except (RunError, ValueError) as error:
            with self.changed:
                self.failure = RunError(str(error))
                self.changed.notify_all()
            self._control.fail("an exchange of tiles", f"RunError: {error}")
