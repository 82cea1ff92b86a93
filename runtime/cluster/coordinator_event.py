"""What the coordinator of a run is told, and what it wants done."""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, final

if TYPE_CHECKING:
    from maniple.runtime.transports.message import Message

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class Received:
    """A message came over a connection."""

    identity: bytes
    message: Message


@final
@dataclass(frozen=True, slots=True)
class Garbled:
    """Bytes that are no message came over a connection; the text says what was wrong."""

    identity: bytes
    text: str


@final
@dataclass(frozen=True, slots=True)
class Unread:
    """A message found no room in the queue to a connection, which does not read."""

    identity: bytes


@final
@dataclass(frozen=True, slots=True)
class ProcessExited:
    """A rank's process ended; the code is the exit status, or minus the signal."""

    rank: int
    returncode: int


@final
@dataclass(frozen=True, slots=True)
class Tick:
    """Time went by; comes several times a second."""


@final
@dataclass(frozen=True, slots=True)
class Interrupted:
    """The user wants the run to end."""


@final
@dataclass(frozen=True, slots=True)
class HostFailed:
    """The agent of a node cannot be, or can no longer be, relied on; the text goes after its host's name."""

    node: int
    text: str


Event: TypeAlias = Received | Garbled | Unread | ProcessExited | Tick | Interrupted | HostFailed


@final
@dataclass(frozen=True, slots=True)
class SendTo:
    """Send a message over a connection."""

    identity: bytes
    message: Message


@final
@dataclass(frozen=True, slots=True)
class Kill:
    """Send a signal to everything that these ranks started."""

    ranks: tuple[int, ...]
    signal: int


@final
@dataclass(frozen=True, slots=True)
class Dump:
    """Have a rank's process write its stacks to its log, by the signal that it chose."""

    rank: int
    signal: int


@final
@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over and all processes have ended.

    Args:
        status: exit status.
        message: what to tell the user; None where a rank has said it.
        rank: the rank at fault, if one is.
        lost: the nodes whose hosts are at fault: they did not come, or cannot be relied on any more.
    """

    status: int
    message: str | None
    rank: int | None
    lost: tuple[int, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the user something; the run goes on."""

    text: str


Instruction: TypeAlias = SendTo | Kill | Dump | Tell | Finish


UNTOLD = 256
"""In place of an exit status, of a process of which only is known that it has ended."""


def ending(returncode: int) -> str:
    """Say how a process ended, after its rank's name."""
    if returncode == UNTOLD:
        return "ended, and nothing says how"
    if returncode >= 0:
        return f"ended with exit status {returncode}"
    try:
        name = f" ({signals.Signals(-returncode).name})"
    except ValueError:
        name = ""
    return f"was killed by signal {-returncode}{name}"
