"""The roster of a run's hosts: whose agents have come, who is still heard, and who carries out what is done to a rank.

Pure. Nodes whose ranks are children of the coordinator's own process are at home and need no agent.

    node   host    ranks   agent
    ====   =====   =====   ==================================================
    0      alpha   0, 1    at home
    1      beta    2, 3    missing -> admitted -> silent for 5 s: the host fails
"""

from __future__ import annotations

import signal as signals
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from maniple.runtime.cluster.coordinator_event import (
    Dump,
    Event,
    HostFailed,
    Instruction,
    Interrupted,
    Kill,
    ProcessExited,
    SendTo,
)
from maniple.runtime.cluster.vigil import SILENCE_S
from maniple.runtime.control.control import place
from maniple.runtime.transports.agent_message import Admitted, AgentHello, Exited, Interrupt, Over, Signal
from maniple.runtime.transports.message import PROTOCOL, Heartbeat, Hello, Message, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__: list[str] = []

DOUBT_S = 2.5
"""A rank that is silent while its agent has been for so long is not at fault: its host is."""


@dataclass(slots=True)
class Seat:
    """One node of a run.

    Args:
        host: the name of its host, as far as it is known.
        address: where its ranks take tiles.
        logs: where its ranks' log files are.
        identity: the connection of its agent; None while there is none, and for a node at home.
        heard: when its agent was heard last, in seconds.
        home: whether its ranks are children of the coordinator's own process.
    """

    host: str = ""
    address: str = ""
    logs: str = ""
    identity: bytes | None = None
    heard: float = 0.0
    home: bool = False


@final
class Roster:
    """The nodes of a run, of which each may be a host of its own.

    Args:
        seats: of each node what is known of it before its agent comes.
        ranks_per_node: ranks of each.
        terms: what all hosts must agree on, each as a word and its value.
        advice: what to do where an agent does not come.
    """

    def __init__(
        self, seats: Iterable[Seat], ranks_per_node: int, terms: tuple[str, ...] = (), advice: str = ""
    ) -> None:
        self.seats = list(seats)
        self.tails: dict[int, str] = {}
        self._ranks_per_node = ranks_per_node
        self._terms = terms
        self._advice = advice
        self._nodes: dict[bytes, int] = {}
        self._addresses = {seat.address: node for node, seat in reversed([*enumerate(self.seats)]) if seat.address}

    @classmethod
    def at_home(cls, nodes: int, ranks_per_node: int) -> Roster:
        """The roster of a run whose ranks are all children of the coordinator's process."""
        return cls((Seat(home=True) for _ in range(nodes)), ranks_per_node)

    @property
    def spread(self) -> bool:
        """Whether any node is elsewhere."""
        return not all(seat.home for seat in self.seats)

    # -------------------------------------------------------------------------------------------- what agents tell

    def take(
        self, identity: bytes, message: Message, now: float, closed: str | None
    ) -> tuple[list[Instruction], Event | None] | None:
        """Take in a message, if it is an agent's.

        Args:
            identity: the connection that it came over.
            message: the message.
            now: seconds.
            closed: why nobody is admitted any more; None while agents are.

        Returns:
            What is to be answered, and what has happened, if anything; None where it is no agent's message.
        """
        if isinstance(message, AgentHello):
            return self._greet(identity, message, now, closed)
        node = self._nodes.get(identity)
        if node is None:
            return None
        self.seats[node].heard = now
        if isinstance(message, Exited):
            if message.rank // self._ranks_per_node != node:
                return [], HostFailed(node, f"told of the end of rank {message.rank}, which it did not start")
            self.tails[message.rank] = message.tail
            return [], ProcessExited(message.rank, -message.signal if message.signal else message.status)
        if isinstance(message, Interrupt):
            return [], Interrupted()
        if isinstance(message, Heartbeat):
            return [], None
        return [], HostFailed(node, f"sent a {type(message).__name__}, which agents do not send")

    def _greet(
        self, identity: bytes, hello: AgentHello, now: float, closed: str | None
    ) -> tuple[list[Instruction], Event | None]:
        if self._nodes.get(identity) == hello.node:
            return [SendTo(identity, Admitted(hello.node))], None
        problem = closed or self._misplaced(hello)
        if problem is not None:
            return [SendTo(identity, Refused(f"host {hello.host} was refused: {problem}"))], None
        seat = self.seats[hello.node]
        seat.host = hello.host
        problem = self._difference(hello)
        if problem is not None:
            refused = Refused(f"host {hello.host} was refused: {problem}")
            return [SendTo(identity, refused)], HostFailed(hello.node, f"was refused: {problem}")
        seat.address, seat.logs, seat.identity, seat.heard = hello.address, hello.logs, identity, now
        self._nodes[identity] = hello.node
        self._addresses[hello.address] = hello.node
        return [SendTo(identity, Admitted(hello.node))], None

    def _misplaced(self, hello: AgentHello) -> str | None:
        """Say why an agent has no place here, whatever it would start."""
        if hello.nodes != len(self.seats):
            return f"expected --nnodes {len(self.seats)}, as where the run began, got {hello.nodes}"
        if not hello.node < len(self.seats):
            return f"expected a --node-rank of 0..{len(self.seats) - 1}, got {hello.node}"
        seat = self.seats[hello.node]
        if seat.home or seat.identity is not None:
            where = f"{seat.host} ({seat.address})" if seat.address else seat.host
            return f"--node-rank {hello.node} is taken by host {where}; give every host a --node-rank of its own"
        return None

    def _difference(self, hello: AgentHello) -> str | None:
        """Say in what an agent differs from what the run needs of it."""
        node = self._addresses.get(hello.address, hello.node)
        if node != hello.node:
            return (
                f"it has address {hello.address}, as host {self.seats[node].host} (node {node}); give each host one "
                "address that the others reach, with --interface"
            )
        if hello.ranks_per_node != self._ranks_per_node:
            return f"expected --ranks-per-node {self._ranks_per_node}, got {hello.ranks_per_node}"
        theirs, ours = dict(_split(hello.terms)), dict(_split(self._terms))
        for word in sorted(ours.keys() | theirs.keys()):
            if ours.get(word) != theirs.get(word):
                return (
                    f"{word}: expected {ours.get(word, 'none')}, as where the run began, got "
                    f"{theirs.get(word, 'none')}; have the same on all hosts"
                )
        return None

    def misfit(self, hello: Hello, size: int) -> str | None:
        """Say why a rank has no place among so many; None if it has one."""
        if hello.version != PROTOCOL:
            return f"expected protocol {PROTOCOL}, got {hello.version}; install one Maniple everywhere"
        if hello.world_size != size:
            return f"expected a world of {size} ranks, got one of {hello.world_size}"
        if not hello.rank < size:
            return f"expected a rank of 0..{size - 1}, got {hello.rank}"
        if hello.node != self.node_of(hello.rank):
            return f"expected node {self.node_of(hello.rank)} for rank {hello.rank}, got {hello.node}"
        return None

    # ------------------------------------------------------------------------------------------------ who is there

    def names(self, told: tuple[str, ...]) -> tuple[str, ...]:
        """Give the host of each rank, none of which is two hosts' name.

        Args:
            told: as the ranks told it.
        """
        if not self.spread:
            return told
        hosts = Counter(seat.host for seat in self.seats)
        own = [f"{seat.host}@{seat.address}" if hosts[seat.host] > 1 else seat.host for seat in self.seats]
        return tuple(own[rank // self._ranks_per_node] for rank in range(len(told)))

    def place(self, rank: int) -> str:
        """Name a rank as every message does, with its host where nodes are hosts."""
        host = self.seats[rank // self._ranks_per_node].host
        named = place(rank, self._ranks_per_node)
        return f"{named} on host {host}" if host and self.spread else named

    def describe(self, node: int) -> str:
        """Name a host with its node and ranks."""
        ranks = ", ".join(map(str, self.ranks(node)))
        host = self.seats[node].host
        return f"host {host} (node {node}, ranks {ranks})" if host else f"the host of node {node} (ranks {ranks})"

    def node_of(self, rank: int) -> int:
        """Give the node of a rank."""
        return rank // self._ranks_per_node

    def ranks(self, node: int) -> range:
        """Give the ranks of a node."""
        return range(node * self._ranks_per_node, (node + 1) * self._ranks_per_node)

    def missing(self) -> tuple[int, ...]:
        """Give the nodes whose agents have not come."""
        return tuple(node for node, seat in enumerate(self.seats) if not seat.home and seat.identity is None)

    def absence(self, nodes: Iterable[int]) -> str:
        """Say that the agents of nodes have not come, and what to do."""
        return f"no agent came from {', '.join(map(self.describe, nodes))}; {self._advice}"

    def silent(self, now: float, seconds: float = SILENCE_S) -> list[int]:
        """Give the nodes whose agents were there and have not been heard for a while."""
        return [
            node for node, seat in enumerate(self.seats) if seat.identity is not None and now - seat.heard > seconds
        ]

    def silence(self, node: int, now: float) -> str:
        """Say that a host is silent, after its name."""
        seconds = now - self.seats[node].heard
        return (
            f"has not answered for {seconds:.0f} s: it is down, cannot be reached, or its agent was ended; see to it, "
            "and start the run again"
        )

    def unreachable(self, now: float) -> Mapping[int, int]:
        """Give how the ranks ended of whose end nobody will tell: no agent came, or it is not heard any more."""
        gone = {*self.missing(), *self.silent(now)}
        return {rank: -signals.SIGKILL for node in sorted(gone) for rank in self.ranks(node)}

    def forgive(self, gap: float) -> None:
        """Move all clocks on by a time in which nobody listened."""
        for seat in self.seats:
            seat.heard += gap

    # -------------------------------------------------------------------------------------------- what agents are told

    def beat(self, beat: Heartbeat) -> list[Instruction]:
        """Ask all agents whether they are there."""
        return self._tell(beat)

    def end(self, status: int, text: str, *, again: bool) -> list[Instruction]:
        """Tell all agents that the run is over, and whether it begins again."""
        return self._tell(Over(status, text, again))

    def route(self, wanted: Kill | Dump) -> list[Instruction]:
        """Have whoever started some ranks send them a signal."""
        ranks = wanted.ranks if isinstance(wanted, Kill) else (wanted.rank,)
        here = tuple(rank for rank in ranks if self.seats[rank // self._ranks_per_node].home)
        found: list[Instruction] = []
        if here:
            found.append(Kill(here, wanted.signal) if isinstance(wanted, Kill) else wanted)
        for rank in ranks:
            identity = self.seats[rank // self._ranks_per_node].identity
            if identity is not None:
                found.append(SendTo(identity, Signal(rank, int(wanted.signal), isinstance(wanted, Kill))))
        return found

    def _tell(self, message: Message) -> list[Instruction]:
        return [SendTo(seat.identity, message) for seat in self.seats if seat.identity is not None]


def _split(terms: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Give each term as its word and its value."""
    return ((word, value) for word, _, value in (term.partition(" ") for term in terms))
