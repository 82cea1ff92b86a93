"""Redials: connections that broke, and were made again or not, as the sockets that dial them tell.

ZeroMQ dials again by itself, and what was under way is lost without a word. So a sender tells its receiver how many
messages it has sent as soon as the connection is there again:

    sender     0 1 2 3 -- / -- (dials again) -- mark: 4 -- 4 5
    receiver   0 1 2                          expected 3: message 3 was lost

It also dials again, without a word and without end, where its proof is refused: a process of another run has the place
by now, or a route leads elsewhere. That is said at once.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, final

import zmq
from zmq.utils.monitor import recv_monitor_message

from maniple.process.error import RunError

if TYPE_CHECKING:
    from collections.abc import Collection

    from maniple.process.clock import Clock

__all__: list[str] = []

PATIENCE_S = 30.0
"""Seconds that a connection may stay broken: its other end may compute, and greet nobody meanwhile."""
LOOK_S = 1.0
"""How often broken connections are looked after."""


@final
class Redials:
    """The connections that one transport dials.

    Args:
        poller: is woken by what happens to them.
        clock: what patience is measured by.
    """

    def __init__(self, poller: zmq.Poller, clock: Clock = monotonic) -> None:
        self._poller = poller
        self._clock = clock
        self._monitors: dict[zmq.Socket[bytes], int] = {}
        self._were_up: set[int] = set()
        self._broken: dict[int, float] = {}

    def watch(self, socket: zmq.Socket[bytes], peer: int) -> None:
        """Watch a socket from before it dials.

        Args:
            socket: dials.
            peer: whom.
        """
        heard = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        monitor = socket.get_monitor_socket(heard)
        self._monitors[monitor] = peer
        self._poller.register(monitor, zmq.POLLIN)

    def wait_s(self, timeout_s: float | None) -> float | None:
        """Give how long may be waited until `look`: as long as is wanted, where nothing is broken."""
        if not self._broken:
            return timeout_s
        return LOOK_S if timeout_s is None else min(LOOK_S, timeout_s)

    def look(self, ready: Collection[object]) -> list[int]:
        """Give the peers to whom the connection was made again.

        Args:
            ready: what the poller found.

        Raises:
            RunError: a connection stays broken, or a proof was refused.
        """
        again: list[int] = []
        for monitor, peer in self._monitors.items():
            while monitor in ready and int(monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                event = recv_monitor_message(monitor, zmq.NOBLOCK)["event"]
                if event == zmq.EVENT_DISCONNECTED and peer in self._were_up:
                    self._broken.setdefault(peer, self._clock())
                elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._broken.pop(peer, None)
                    again += [peer] if peer in self._were_up else []
                    self._were_up.add(peer)
                elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    raise RunError(
                        f"what answers in the place of rank {peer} refuses the proof of its key: it is no rank of this "
                        "run; see to addresses and routes between their hosts"
                    )
        for peer, since in self._broken.items():
            if self._clock() - since > PATIENCE_S:
                raise RunError(
                    f"the connection to rank {peer} broke, and cannot be made again for {PATIENCE_S:.0f} s; see to the "
                    "network between their hosts, or whether something between them closes connections"
                )
        return again

    def close(self) -> None:
        """Let go of all, once the sockets are not monitored any more."""
        for monitor in self._monitors:
            monitor.close(linger=0)
        self._monitors.clear()
