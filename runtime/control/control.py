"""The control plane as one rank sees it: what it tells of its program, and how it learns that it must stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from hashlib import blake2b
from typing import TYPE_CHECKING, final

from maniple.process.error import RunError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

MAX_TEXT = 1000
"""Characters of a call's text that travel; its digest covers all of them."""


class RankStopped(RunError):  # noqa: N818 - it is no error of this rank
    """The run was stopped; its message says why, and the launcher prints it once."""


def place(rank: int, ranks_per_node: int) -> str:
    """Name a rank as every message does: `node 1 (rank 3)`, nodes counted from 0."""
    return f"node {rank // ranks_per_node} (rank {rank})"


def echo_name(rank: int) -> bytes:
    """Name the connection over which a rank gives the launcher's beats back."""
    return b"echo %d" % rank


class Control(ABC):
    """One rank's end of the control plane."""

    @abstractmethod
    def call(self, text: str, digest: bytes = b"", *, soon: bool = True) -> None:
        """Tell what the program does next; every rank must tell the same, in the same order.

        Returns at once: ranks that differ are found, and all ranks stopped, a moment later.

        Args:
            text: a line for messages, such as `trainer.step 3 of 64 samples`.
            digest: bytes that stand for the call's inputs, of any length.
            soon: whether to wake who tells it, which may cost as much as a short call itself; else it is told with
                whatever is told next, at the latest half a second later.

        Raises:
            RankStopped: the run was stopped.
        """

    @abstractmethod
    def gather(self, payload: bytes) -> list[bytes]:
        """Exchange bytes with all ranks; returns every rank's, in rank order, once the last one is there.

        Raises:
            RankStopped: the run was stopped.
            RunError: the payload is larger than a message carries.
        """

    def greatest(self, payload: bytes) -> bytes:
        """Exchange bytes with all ranks; returns the greatest, as bytes compare, once the last one is there.

        What a rank takes for it does not depend on how many there are.

        Raises:
            RankStopped: the run was stopped.
            RunError: the payload is larger than a message carries.
        """
        return max(self.gather(payload))

    @abstractmethod
    def fail(self, where: str, text: str) -> None:
        """Say that this rank cannot go on; all others are stopped.

        Args:
            where: what the program was doing; empty for its last call.
            text: what went wrong.
        """

    @abstractmethod
    def on_stop(self, callback: Callable[[RankStopped], object]) -> None:
        """Have a function called, on a thread of the control plane, when the run is stopped; at once if it was."""

    def tell_headway(self) -> None:  # noqa: B027  (most are watched by nobody)
        """Have whoever watches this rank know its headway before this returns; does nothing where nobody does."""

    @abstractmethod
    def close(self) -> None:
        """Leave: say that this rank's program ended, and wait until every rank's has."""


@final
class SoloControl(Control):
    """The control plane of a world of one rank: nobody to agree with."""

    def call(self, text: str, digest: bytes = b"", *, soon: bool = True) -> None:
        """Do nothing."""

    def gather(self, payload: bytes) -> list[bytes]:
        """Give the payload back."""
        return [payload]

    def fail(self, where: str, text: str) -> None:
        """Do nothing: whoever called has the error."""

    def on_stop(self, callback: Callable[[RankStopped], object]) -> None:
        """Do nothing: nobody stops it."""

    def close(self) -> None:
        """Do nothing."""


@final
class Roll:
    """The rolling hash of a rank's calls: equal on two ranks exactly when all their calls so far are.

    Args:
        sequence: how many calls there were; the first is call 1.
        digest: 16 bytes that stand for all of them.
    """

    __slots__ = ("digest", "sequence")

    def __init__(self) -> None:
        self.sequence = 0
        self.digest = bytes(16)

    def add(self, text: str, inputs: bytes) -> bytes:
        """Take in a call and give 8 bytes that stand for its inputs alone, none where it has none."""
        short = blake2b(inputs, digest_size=8).digest() if inputs else b""
        # The inputs' digest has a known length, so no two (text, inputs) pairs run together into the same bytes.
        told = bytes((len(short),)) + short + text.encode("utf-8", "surrogatepass")
        self.digest = blake2b(self.digest + told, digest_size=16).digest()
        self.sequence += 1
        return short
