"""The head of a run: brings the ranks together, watches them, and decides when and why the run ends. Pure.

=========  ===========================================  =========
phase      what happens                                 next
=========  ===========================================  =========
joining    all ranks said hello                         running
joining    all processes ended with 0, none joined      done
running    all processes ended                          done
either     a rank is at fault, or the user interrupts   stopping
stopping   all processes ended                          done
=========  ===========================================  =========
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum
from hmac import compare_digest
from typing import final

from maniple.runtime.agreement import Agreement, Fault, Told
from maniple.runtime.control import place
from maniple.runtime.head_event import (
    Event,
    Finish,
    Garbled,
    Instruction,
    Interrupted,
    Kill,
    ProcessExited,
    Received,
    SendTo,
)
from maniple.runtime.message import (
    MAX_STRING,
    PROTOCOL,
    Call,
    Failed,
    Gather,
    Gathered,
    Goodbye,
    Heartbeat,
    Hello,
    Message,
    Refused,
    Stop,
    Welcome,
    readable,
)

__all__: list[str] = []

BEAT_S = 1.0
# Time for a stopped rank to end by itself, then from the request to end until it is ended.
LAST_WORDS_S = 1.0
TERMINATION_S = 2.0
# Other ranks get this long to refuse a request that one rank refused.
REFUSAL_S = 5.0
# A launcher that handled nothing for this long was suspended, and cannot tell how long ranks were silent.
SUSPENDED_S = 1.0


class Phase(Enum):
    """Where a run is."""

    JOINING = "joining"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"


@dataclass(slots=True)
class _Member:
    identity: bytes
    hello: Hello
    heard: float
    ended: bool = False


@final
class Head:
    """The rendezvous and supervision of one run, as `handle(event, now) -> instructions`.

    Args:
        world_size: number of ranks.
        ranks_per_node: ranks of each node.
        join_timeout: seconds from the first hello until all must be there.
        token: the run's secret.
        heartbeat_timeout: seconds without a word after which a rank is at fault.
    """

    def __init__(
        self, world_size: int, ranks_per_node: int, join_timeout: float, token: str, heartbeat_timeout: float = 4.0
    ) -> None:
        self.phase = Phase.JOINING
        self._size = world_size
        self._ranks_per_node = ranks_per_node
        self._join_timeout = join_timeout
        self._token = token
        self._heartbeat_timeout = heartbeat_timeout
        self._members: dict[int, _Member] = {}
        self._ranks: dict[bytes, int] = {}
        self._exits: dict[int, int] = {}
        self._agreement = Agreement(world_size, ranks_per_node)
        self._refusals: dict[int, str] = {}
        self._refused_at: float | None = None
        self._join_by: float | None = None
        self._beat_at = 0.0
        self._beats = 0
        self._latest: float | None = None
        self._finish = Finish(0, None, None)
        self._terminate_at: float | None = None
        self._kill_at: float | None = None

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take in what happened.

        Args:
            event: what.
            now: seconds on a clock that only grows.
        """
        self._forgive(now)
        if self.phase is Phase.DONE:
            return []
        if isinstance(event, Received):
            return self._received(event.identity, event.message, now)
        if isinstance(event, Garbled):
            return self._garbled(event, now)
        if isinstance(event, ProcessExited):
            return self._exited(event.rank, event.returncode, now)
        if isinstance(event, Interrupted):
            return self._interrupted(now)
        return self._tick(now)

    def _forgive(self, now: float) -> None:
        """Move all deadlines when this process itself was suspended."""
        gap = 0.0 if self._latest is None else now - self._latest
        self._latest = now
        if gap > SUSPENDED_S:
            for member in self._members.values():
                member.heard += gap
            if self._join_by is not None:
                self._join_by += gap

    # ------------------------------------------------------------------------------------------------------ messages

    def _received(self, identity: bytes, message: Message, now: float) -> list[Instruction]:
        if isinstance(message, Hello):
            return self._hello(identity, message, now)
        rank = self._ranks.get(identity)
        if rank is None:
            return [SendTo(identity, Refused("say hello first"))]
        self._members[rank].heard = now
        if self.phase is Phase.STOPPING or isinstance(message, Heartbeat):
            return []
        if isinstance(message, Call):
            told = Told(message.digest, message.inputs, message.text)
            return self._blame(self._agreement.call(rank, message.sequence, told, now), now)
        if isinstance(message, Gather):
            return self._gather(rank, message, now)
        if isinstance(message, Failed):
            return self._failed(rank, message, now)
        if isinstance(message, Goodbye):
            return self._goodbye(rank, now)
        return self._fault(rank, f"sent a {type(message).__name__}, which ranks do not send", now)

    def _hello(self, identity: bytes, hello: Hello, now: float) -> list[Instruction]:
        problem = self._problem(identity, hello)
        if problem is not None:
            who = f"{place(hello.rank, self._ranks_per_node)} on {hello.host}, process {hello.pid}"
            reason = f"{who}, was refused: {problem}"
            known = hello.rank if hello.rank < self._size else None
            return [SendTo(identity, Refused(reason)), *self._stop(Finish(1, reason, known), now)]
        if self.phase is Phase.STOPPING:
            return [SendTo(identity, Refused(self._finish.message or "the run is over"))]
        self._members[hello.rank] = _Member(identity, hello, now)
        self._ranks[identity] = hello.rank
        if self._join_by is None:
            self._join_by = now + self._join_timeout
        gone = [rank for rank in sorted(self._exits) if rank not in self._members]
        if gone:
            return self._left_early(gone[0], now)
        if len(self._members) < self._size:
            return []
        self.phase = Phase.RUNNING
        hellos = [self._members[rank].hello for rank in range(self._size)]
        welcome = Welcome(tuple(told.data_endpoint for told in hellos), tuple(told.host for told in hellos))
        return self._to_all(welcome)

    def _problem(self, identity: bytes, hello: Hello) -> str | None:
        if not compare_digest(hello.token.encode(), self._token.encode()):
            return "its token is not this run's; start ranks with maniple run"
        if hello.version != PROTOCOL:
            return f"expected protocol {PROTOCOL}, got {hello.version}; install one Maniple everywhere"
        if hello.world_size != self._size:
            return f"expected a world of {self._size} ranks, got one of {hello.world_size}"
        if not hello.rank < self._size:
            return f"expected a rank of 0..{self._size - 1}, got {hello.rank}"
        if hello.rank in self._members or identity in self._ranks:
            return f"rank {hello.rank} has joined already"
        if hello.node != hello.rank // self._ranks_per_node:
            return f"expected node {hello.rank // self._ranks_per_node} for rank {hello.rank}, got {hello.node}"
        return None

    def _garbled(self, event: Garbled, now: float) -> list[Instruction]:
        rank = self._ranks.get(event.identity)
        if rank is not None:
            return self._fault(rank, f"sent what is no message: {event.text}", now)
        # Anything may knock at a port; only what claims to be a rank of this run can fail it.
        return [SendTo(event.identity, Refused(event.text))]

    def _gather(self, rank: int, message: Gather, now: float) -> list[Instruction]:
        outcome = self._agreement.gather(rank, message.payload)
        if isinstance(outcome, tuple):
            return self._to_all(Gathered(message.sequence, outcome))
        return self._blame(outcome, now)

    def _failed(self, rank: int, message: Failed, now: float) -> list[Instruction]:
        during = f" during `{message.where}`" if message.where else ""
        if not message.request:
            return self._fault(rank, f"raised {message.text}{during}", now)
        self._refusals[rank] = f"refused the request{during}: {message.text}"
        self._refused_at = now if self._refused_at is None else self._refused_at
        return []

    def _goodbye(self, rank: int, now: float) -> list[Instruction]:
        self._members[rank].ended = True
        fault = self._agreement.end(rank)
        if fault is not None:
            return self._blame(fault, now)
        if len(self._members) == self._size and all(member.ended for member in self._members.values()):
            return [
                SendTo(self._members[other].identity, Goodbye(0, 0))
                for other in range(self._size)
                if other not in self._exits
            ]
        return []

    # ----------------------------------------------------------------------------------------- processes, time, user

    def _exited(self, rank: int, code: int, now: float) -> list[Instruction]:
        self._exits[rank] = code
        if self.phase is Phase.STOPPING:
            return self._settle()
        if code == 2:
            self._refusals.setdefault(rank, f"ended with exit status 2{self._during(rank)}")
            self._refused_at = now if self._refused_at is None else self._refused_at
        elif code != 0 or rank in self._refusals:
            return self._fault(rank, self._refusals.get(rank) or f"{_ending(code)}{self._during(rank)}", now)
        elif rank in self._members:
            if not self._members[rank].ended:
                found = self._goodbye(rank, now)
                return found + self._settle()
        elif self._members:
            return self._left_early(rank, now)
        return self._settle()

    def _settle(self) -> list[Instruction]:
        """Finish when all processes have ended."""
        if len(self._exits) < self._size:
            return []
        if self.phase is not Phase.STOPPING and self._refusals:
            self._finish = self._refusal()
        self.phase = Phase.DONE
        return [self._finish]

    def _refusal(self) -> Finish:
        """Judge a run in which ranks refused the request: rank 0's word counts, and rank 0 has said it."""
        if 0 in self._refusals:
            return Finish(2, None, None)
        rank = min(self._refusals)
        return Finish(1, f"{place(rank, self._ranks_per_node)} {self._refusals[rank]}", rank)

    def _interrupted(self, now: float) -> list[Instruction]:
        if self.phase is Phase.STOPPING:
            return [Kill(self._alive(), signal.SIGKILL)]
        found = self._stop(Finish(130, "interrupted", None), now)
        self._terminate_at, self._kill_at = None, now + TERMINATION_S
        return [*found, Kill(self._alive(), signal.SIGTERM)]

    def _tick(self, now: float) -> list[Instruction]:
        if self.phase is Phase.STOPPING:
            return self._press(now)
        if self._refused_at is not None and now - self._refused_at >= REFUSAL_S:
            return self._stop(self._refusal(), now)
        fault = self._agreement.tick(now)
        if fault is not None:
            return self._blame(fault, now)
        # A rank beats until every rank has said goodbye; its own goodbye does not excuse it.
        ended = all(member.ended for member in self._members.values())
        for rank, member in sorted(self._members.items()):
            if rank not in self._exits and not ended and now - member.heard > self._heartbeat_timeout:
                silence = f"has not answered for {self._heartbeat_timeout:g} s (stopped or unreachable)"
                last = self._agreement.last[rank]
                told = f", last call: `{last}`" if last else ", before its first call"
                return [Kill((rank,), signal.SIGKILL), *self._fault(rank, silence + told, now)]
        if self.phase is Phase.JOINING and self._join_by is not None and now >= self._join_by:
            return self._late(now)
        if self._members and now >= self._beat_at:
            self._beats, self._beat_at = self._beats + 1, now + BEAT_S
            return self._to_all(Heartbeat(0, self._beats))
        return []

    def _press(self, now: float) -> list[Instruction]:
        """End ranks that do not end by themselves."""
        if self._terminate_at is not None and now >= self._terminate_at:
            self._terminate_at = None
            return [Kill(self._alive(), signal.SIGTERM)]
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            return [Kill(self._alive(), signal.SIGKILL)]
        return []

    # -------------------------------------------------------------------------------------------------------- faults

    def _late(self, now: float) -> list[Instruction]:
        missing = [rank for rank in range(self._size) if rank not in self._members]
        names = ", ".join(place(rank, self._ranks_per_node) for rank in missing)
        text = f"{names} did not join within {self._join_timeout:g} s ({self._joined()})"
        advice = "every rank's program must reach the world; see its log, or raise --join-timeout"
        return self._stop(Finish(1, f"{text}; {advice}", missing[0]), now)

    def _left_early(self, rank: int, now: float) -> list[Instruction]:
        text = f"ended with exit status {self._exits[rank]} before it joined ({self._joined()})"
        return self._fault(rank, text, now)

    def _joined(self) -> str:
        names = [place(rank, self._ranks_per_node) for rank in sorted(self._members)]
        return f"joined: {', '.join(names) or 'none'}"

    def _during(self, rank: int) -> str:
        if rank not in self._members:
            return " before it joined"
        last = self._agreement.last[rank]
        return f" during `{last}`" if last else " before its first call"

    def _blame(self, fault: Fault | None, now: float) -> list[Instruction]:
        return [] if fault is None else self._fault(fault.rank, fault.text, now)

    def _fault(self, rank: int, text: str, now: float) -> list[Instruction]:
        return self._stop(Finish(1, f"{place(rank, self._ranks_per_node)} {text}", rank), now)

    def _stop(self, finish: Finish, now: float) -> list[Instruction]:
        """Stop all ranks, once: the first reason counts."""
        if self.phase is Phase.STOPPING:
            return []
        self.phase = Phase.STOPPING
        self._finish = finish
        self._terminate_at = now + LAST_WORDS_S
        self._kill_at = now + LAST_WORDS_S + TERMINATION_S
        text = readable(finish.message or "the request was refused", MAX_STRING // 4)
        return [*self._to_all(Stop(text)), *self._settle()]

    def _to_all(self, message: Message) -> list[Instruction]:
        return [
            SendTo(member.identity, message)
            for rank, member in sorted(self._members.items())
            if rank not in self._exits
        ]

    def _alive(self) -> tuple[int, ...]:
        return tuple(rank for rank in range(self._size) if rank not in self._exits)


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:
        name = ""
    return f"was killed by signal {-code}{name}"
