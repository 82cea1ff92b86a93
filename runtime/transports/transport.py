"""The data plane's interface: how the tiles of one rank reach another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np

from maniple.process.error import RunError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.runtime.transports.fabric import Fabric

__all__: list[str] = []

LOOPBACK = "127.0.0.1"
"""The address of this host that no other host can reach."""

REMEMBERED = 1 << 12
"""How many accounts back bytes can be asked for."""


@final
@dataclass(frozen=True, slots=True)
class Guard:
    """What guards tiles on their way through sockets, beside the proofs of both ends.

    Args:
        encrypt: nobody on the way can read them.
        verify: what was altered on the way is refused.
    """

    encrypt: bool = False
    verify: bool = False

    def __bool__(self) -> bool:
        """Say whether anything does."""
        return self.encrypt or self.verify


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


class Transport(ABC):
    """One rank's end of the data plane.

    Each rank opens its end before the join and tells all others its `endpoint` there, whatever that is; `connect` then
    tells it theirs. Until the first send nothing needs to be connected.

    One thread per rank sends and polls; `wake`, `count_bytes` and `total` may be called from any. What goes from one
    rank to another arrives in order, once, and unchanged; between different pairs there is no order.

    A class says of all its ends:

        way              what it is, as messages say it: tiles are exchanged "through `way`"
        shares_memory    whether ranks of one host exchange tiles through memory that they share, and through this alone
                         with ranks of other hosts
        guards           whether it can guard tiles: then it is opened with `guard=Guard(...)` where that is asked
        lends            whether it refers to a payload only until that has left: then tiles are on loan to it as they
                         lie, and change once nobody refers to them

    and each has:

        endpoint         a text by which other ranks find it; at most 64 KiB
        endpoints        those of all ranks, once it is connected
        place            set by whoever polls: says where a payload belongs, given its sender, its bytes, and how many
                         payloads of that sender come before it that were not handed over yet; None where nobody knows.
                         Asked within `poll`; a transport that writes it there hands that over, and saves a copy
        meter            the payload bytes that it was handed: each send adds its own
        fabric           what makes whole exchanges beside it; None where there is none

    Args:
        rank: this rank.
        size: number of ranks.
        token: the run's secret, which all ranks of it know and nobody else: whoever cannot show that is no rank.
        interface: the address of this host under which other ranks can reach it.
    """

    way: ClassVar[str]
    shares_memory: ClassVar[bool] = False
    guards: ClassVar[bool] = False
    lends: ClassVar[bool] = False
    rank: int
    size: int
    meter: Meter
    endpoint: str = ""
    endpoints: tuple[str, ...] = ()
    place: Callable[[int, int, int], memoryview | None] | None = None
    fabric: Fabric | None = None

    def __init__(self, rank: int, size: int, token: str, interface: str = LOOPBACK) -> None:
        self.rank, self.size = rank, size
        self.meter = Meter()

    def connect(self, endpoints: Sequence[str]) -> None:
        """Learn the endpoints of all ranks, in rank order; called once, before anything is sent.

        Raises:
            RunError: not one per rank.
        """
        if len(endpoints) != self.size:
            raise RunError(f"expected the endpoints of {self.size} ranks, got {len(endpoints)}")
        self.endpoints = tuple(endpoints)

    def check_peer(self, peer: int) -> None:
        """Refuse a receiver that is no other rank.

        Raises:
            RunError: names those that there are.
        """
        if peer == self.rank or not 0 <= peer < self.size:
            raise RunError(f"rank {self.rank}: expected another rank of 0..{self.size - 1} to send to, got {peer}")

    def room(self, peer: int, size: int, before: Sequence[Delivery], others: int = 0) -> memoryview:
        """Give the bytes into which a payload is to be received: where it belongs, or else new ones.

        Args:
            peer: its sender.
            size: bytes of it.
            before: what was received before it, and was not handed over yet.
            others: further payloads of that sender that are to be handed over before it.
        """
        behind = others + sum(one.peer == peer and one.payload is not None for one in before)
        found = None if self.place is None else self.place(peer, size, behind)
        return np.empty(size, np.uint8).data if found is None else found

    @abstractmethod
    def send(self, peer: int, header: bytes, payload: memoryview | None, account: int) -> None:
        """Send a header, and a payload if there is one; returns before they arrive.

        Args:
            peer: the receiving rank, another than this one.
            header: a few bytes, handed over as they are.
            payload: contiguous bytes that nobody changes from now on, or, if it `lends`, while they are referred to.
            account: the number under which the payload's bytes are counted, by `meter`.

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

    def count_bytes(self, account: int) -> int | None:
        """Count the payload bytes that were sent under an account; None if it is too long ago to be known."""
        return self.meter.of(account)

    def total(self) -> int:
        """Count the payload bytes that were ever sent."""
        return self.meter.total

    @abstractmethod
    def close(self) -> None:
        """End it; a poll under way returns, later ones are refused. Closing twice is allowed."""
