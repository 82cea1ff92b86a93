"""Exchange queues: the exchanges that a rank's fabric is to make, in the one order that all its members share.

A fabric tells calls of a group apart by their order alone, and may do them one after another, so all ranks begin them
in the order of the schedule, run after run, whatever is ready first. That order agrees with every dependence: what the
first in the queue waits for never waits for one behind it.

    submitted      run 1: a, b                      run 2: a, b
    ready here         b      a          a'               b'
    begun              .      a, b       a'               b'
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maniple.runtime.storage.push import Exchange, Movement
    from maniple.runtime.transports.transport import Transport

__all__: list[str] = []


@final
class ExchangeQueue:
    """The exchanges of one rank that were submitted and have not begun. It belongs to the engine's thread.

    Args:
        transport: whose meter counts what they send.
        ended: called with one that is over, from any thread.
    """

    def __init__(self, transport: Transport, ended: Callable[[Exchange], None]) -> None:
        self._transport, self._ended = transport, ended
        self._waiting: deque[Exchange] = deque()

    def line_up(self, movements: Iterable[Movement]) -> None:
        """Append the exchanges of movements, in the order that all ranks share."""
        self._waiting.extend(movement.exchange for movement in movements if movement.exchange is not None)

    def note_part(self, exchange: Exchange | None) -> None:
        """Take note of one of the things that an exchange, if any, waits for here; begin what can begin."""
        if exchange is None:
            return
        exchange.came += 1
        while self._waiting and self._waiting[0].came > self._waiting[0].parts:
            first = self._waiting.popleft()
            first.came = 0
            self._transport.meter.add(first.movement.account, first.size)
            first.begin(partial(self._ended, first))
