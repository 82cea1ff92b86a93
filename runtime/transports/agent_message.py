"""Messages of agents: what the agent of a host and the coordinator of the run tell each other.

=============  ===========================  ========================================================
who            says                         when
=============  ===========================  ========================================================
agent          `AgentHello`                 first, until it is admitted or refused
coordinator    `Admitted`                   then the agent starts its ranks
coordinator    `Heartbeat`, given back      every second
agent          `Exited`                     a rank's process ended
agent          `Interrupt`                  its user wants the run to end
coordinator    `Signal`                     ranks are to be ended, or to write their stacks
coordinator    `Over`                       the run is over; then the agent ends with its exit status
=============  ===========================  ========================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

__all__: list[str] = []


@final
@dataclass(frozen=True, slots=True)
class AgentHello:
    """The agent of a host introduces itself.

    Args:
        node: which of the run's nodes the host is.
        nodes: how many there are, as it was told.
        ranks_per_node: ranks that it is to start, likewise.
        host: the name of the host.
        address: under which the ranks of other hosts reach those of this one.
        logs: where its ranks' log files are.
        terms: what must be the same on all hosts, each as a word and its value: versions, script, options.
    """

    node: int
    nodes: int
    ranks_per_node: int
    host: str
    address: str
    logs: str
    terms: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class Admitted:
    """An agent takes part, as this node."""

    node: int


@final
@dataclass(frozen=True, slots=True)
class Exited:
    """A rank's process ended.

    Args:
        rank: whose.
        status: its exit status; 0 where a signal ended it.
        signal: the signal that ended it; 0 for none.
        tail: the last lines of its log.
    """

    rank: int
    status: int
    signal: int
    tail: str


@final
@dataclass(frozen=True, slots=True)
class Interrupt:
    """The user of an agent wants the run to end."""

    node: int


@final
@dataclass(frozen=True, slots=True)
class Signal:
    """A rank's process is to get a signal, with all that it started or alone."""

    rank: int
    signal: int
    group: bool


@final
@dataclass(frozen=True, slots=True)
class Over:
    """The run is over.

    Args:
        status: its exit status.
        text: what the user is told; may be empty.
        again: whether it begins again.
    """

    status: int
    text: str
    again: bool
