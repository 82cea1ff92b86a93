"""The data plane's interface: how the tiles of one rank reach another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from dataclasses import dataclass

__all__: list[str] = []

REMEMBERED = 1 << 12
"""How many accounts back bytes can be asked for."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What arrived from one other rank.

    Args:
        peer: the sending rank.
        header: the sender's header, unchanged.
        payload: the sender's bytes, valid for as long as it is referred to; None where there were none.
    """

    peer: int
    header: bytes
    payload: memoryview | None


class Transport(ABC):
    """One rank's end of the data plane.

    One thread per rank sends and polls; `wake`, `measured` and `total` may be called from any. What goes from one
    rank to another arrives in order, once, and unchanged; between different pairs there is no order.
    """

    rank: int
    size: int

    @abstractmethod
    def send(self, peer: int, header: bytes, payload: memoryview | None, account: int) -> None:
        """Send a header, and a payload if there is one; returns before they arrive.

        Args:
            peer: the receiving rank, another than this one.
            header: a few bytes, handed over as they are.
            payload: contiguous bytes that nobody changes from now on.
            account: the number under which the payload's bytes are counted.

        Raises:
            RunError: the transport is closed, or the payload is larger than it carries.
        """

    @abstractmethod
    def poll(self, timeout_s: float | None) -> list[Delivery]:
        """Wait until something arrives, `wake` was called, or the time is over; give all that arrived.

        Args:
            timeout_s: seconds; None waits as long as it takes, 0 does not wait.

        Raises:
            RunError: the transport is closed, or frames were lost.
        """

    @abstractmethod
    def wake(self) -> None:
        """Make the poll under way return, or else the next one; from any thread, several calls count as one."""

    @abstractmethod
    def measured(self, account: int) -> int | None:
        """Count the payload bytes that were sent under an account; None if it is too long ago to be known."""

    @abstractmethod
    def total(self) -> int:
        """Count the payload bytes that were ever sent."""

    @abstractmethod
    def close(self) -> None:
        """End it; a poll under way returns, later ones are refused. Closing twice is allowed."""


class Meter:
    """The payload bytes that a transport was handed: in all, and of the latest accounts.

    Accounts are the numbers of runs, so they only grow. Account `n` has slot `n mod REMEMBERED`, which a later one
    takes over: a program takes no more memory the longer it runs.
    """

    def __init__(self) -> None:
        self.total = 0
        self._accounts = array("q", [-1]) * REMEMBERED
        self._sizes = array("q", [0]) * REMEMBERED

    def add(self, account: int, size: int) -> None:
        """Count a payload; called by the sending thread alone."""
        self.total += size
        slot = account % REMEMBERED
        if self._accounts[slot] < account:
            self._accounts[slot], self._sizes[slot] = account, 0
        if self._accounts[slot] == account:
            self._sizes[slot] += size

    def of(self, account: int) -> int | None:
        """Count the bytes of one account; None if a later one took over its slot."""
        slot = account % REMEMBERED
        if self._accounts[slot] > account:
            return None
        return self._sizes[slot] if self._accounts[slot] == account else 0
