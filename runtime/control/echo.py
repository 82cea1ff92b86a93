"""The echo of a rank: gives the launcher's beats back, by code that never asks for the interpreter lock.

A thread of ZeroMQ's own (`zmq_proxy` from a socket to itself) runs as long as the process does: through a sort of a
long list, an import, a call into a library that keeps the lock. It stops when the process is stopped.
"""

from __future__ import annotations

from contextlib import suppress
from typing import final

import zmq

from maniple.process.quiet_thread import QuietThread
from maniple.runtime.control.control import echo_name
from maniple.runtime.transports.proof import be_rank
from maniple.runtime.transports.zeromq import make_socket

__all__: list[str] = []

# Beats come once a second; more of them than this that lie unread say no more than these do.
BEATS = 8


@final
class Echo:
    """A thread that gives back what comes, until its context ends.

    Args:
        context: ending it ends the echo.
        endpoint: where the coordinator's socket is.
        token: the run's secret.
        rank: whose echo.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, token: str, rank: int) -> None:
        self._socket = make_socket(context, zmq.DEALER, sending=BEATS, receiving=BEATS)
        self._socket.setsockopt(zmq.ROUTING_ID, echo_name(rank))
        be_rank(self._socket, token)
        self._socket.connect(endpoint)
        self._thread = QuietThread(target=self._run, name="echo", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(zmq.ContextTerminated):
            zmq.proxy(self._socket, self._socket)
        self._socket.close(linger=0)
