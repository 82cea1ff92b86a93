"""The transport of a launch that does not say which: memory that ranks share where they can, sockets elsewhere.

Replays and mailboxes find the shared memory of a host (`shared_memory`) by themselves; what is sent goes elsewhere.
"""

from __future__ import annotations

from typing import final

from maniple.runtime.transports.zeromq import ZmqTransport

__all__: list[str] = []


@final
class SharedOrSockets(ZmqTransport):
    """Sockets for what goes to ranks of other hosts; those of this one share memory."""

    shares_memory = True
