"""The coordinator of a run: brings the ranks together, watches them, and decides when and why the run ends. Pure.

=========  ===========================================  =========
phase      what happens                                 next
=========  ===========================================  =========
joining    all ranks said hello                         running
joining    all processes ended with 0, none joined      done
running    all processes ended                          done
either     a rank is at fault, or the user interrupts   stopping
stopping   all processes ended                          done
=========  ===========================================  =========

Only a connection that has proved to be of this run (`proof`) carries messages to here, so a stranger's never come. What
comes nevertheless from a connection that is no member's changes nothing: a hello that is not of a rank that is still
missing is refused and forgotten, and whoever said it ends with the reason in its log; anything else is dropped.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import final

from maniple.runtime.cluster.closing import Closing, Step
from maniple.runtime.cluster.coordinator_event import (
    UNTOLD,
    Dump,
    Event,
    Finish,
    Garbled,
    HostFailed,
    Instruction,
    Interrupted,
    Kill,
    ProcessExited,
    Received,
    SendTo,
    Tell,
    Unread,
    ending,
)
from maniple.runtime.cluster.phase import Phase
from maniple.runtime.cluster.refusals import Refusals
from maniple.runtime.cluster.restarts.course import Course
from maniple.runtime.cluster.roster import DOUBT_S, Roster
from maniple.runtime.cluster.vigil import HANG_S, Trouble, Verdict, Vigil
from maniple.runtime.control.agreement import Agreement, Fault, Told
from maniple.runtime.control.control import echo_name
from maniple.runtime.transports.message import (
    MAX_STRING,
    Call,
    Failed,
    Gather,
    Gathered,
    Goodbye,
    Headway,
    Heartbeat,
    Hello,
    Message,
    Refused,
    Stop,
    Welcome,
    readable,
)

__all__: list[str] = []

# A rank that hears nothing of the launcher gives it up after 4 s, an echo may fail to come for 5: several beats each.
BEAT_S = 1.0
# A launcher that handled nothing for this long was suspended, and cannot tell how long ranks were silent.
SUSPENDED_S = 1.0


@dataclass(slots=True)
class _Member:
    identity: bytes
    hello: Hello
    ended: bool = False


@final
class Coordinator:
    """The rendezvous and supervision of one run, as `handle(event, now) -> instructions`.

    Args:
        world_size: number of ranks.
        ranks_per_node: ranks of each node.
        join_timeout: seconds from the first hello until all must be there.
        hang_timeout: seconds after which a rank that others wait for, and that does not get on, is at fault.
        roster: the hosts; None where all ranks are children of this process.
        attempt: how often the run was begun before.
        again: whether it begins again if ranks or hosts fail.
    """

    def __init__(
        self,
        world_size: int,
        ranks_per_node: int,
        join_timeout: float,
        hang_timeout: float = HANG_S,
        roster: Roster | None = None,
        attempt: int = 0,
        *,
        again: bool = False,
    ) -> None:
        self.phase = Phase.JOINING
        self._size = world_size
        self._join_timeout = join_timeout
        self._vigil = Vigil(hang_timeout)
        self._roster = roster or Roster.at_home(world_size // ranks_per_node, ranks_per_node)
        self._members: dict[int, _Member] = {}
        self._ranks: dict[bytes, int] = {}
        self._echoes: dict[bytes, int] = {}
        self._exits: dict[int, int] = {}
        self._goodbyes = 0
        self._agreement = Agreement(world_size, ranks_per_node)
        self._refusals = Refusals()
        self._join_by: float | None = None
        self._beat_at = 0.0
        self._beats = 0
        self._latest: float | None = None
        self.finish = Finish(0, None, None)
        self.course = Course()
        self._attempt, self._again = attempt, again
        self._silent: tuple[int, ...] = ()
        self._closing: Closing | None = None

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
            return self._handle_message(event.identity, event.message, now)
        if isinstance(event, Garbled | Unread):
            rank, text = self._ranks.get(event.identity), "does not read what it is told"
            if isinstance(event, Garbled):
                text = f"sent what is no message: {event.text}"
            return [] if rank is None else self._fault(rank, text, now)
        if isinstance(event, ProcessExited):
            return self._handle_exit(event.rank, event.returncode, now)
        if isinstance(event, HostFailed):
            text = f"{self._roster.describe(event.node)} {event.text}"
            return self._stop(Finish(1, text, None, (event.node,)), now)
        if isinstance(event, Interrupted):
            return self._handle_interrupt(now)
        return self._tick(now)

    def _forgive(self, now: float) -> None:
        """Move all deadlines when this process itself was suspended."""
        gap = 0.0 if self._latest is None else now - self._latest
        self._latest = now
        if gap > SUSPENDED_S:
            self._vigil.forgive(gap)
            self._roster.forgive(gap)
            if self._join_by is not None:
                self._join_by += gap
        self.course.begun = now if self.course.begun is None else self.course.begun

    # ------------------------------------------------------------------------------------------------------ messages

    def _handle_message(self, identity: bytes, message: Message, now: float) -> list[Instruction]:
        closed = None if self.phase is Phase.JOINING else self.finish.message or "all have joined already"
        found = self._roster.take(identity, message, now, closed)
        if found is not None:
            answers, event = found
            return answers if event is None else [*answers, *self.handle(event, now)]
        if isinstance(message, Hello):
            return self._hello(identity, message, now)
        echoing = self._echoes.get(identity)
        if echoing is not None:
            if isinstance(message, Heartbeat) and echoing not in self._exits:
                self._vigil.note_echo(echoing, now)
            return []
        rank = self._ranks.get(identity)
        if rank is None or rank in self._exits or self.phase is Phase.STOPPING:
            return []
        if isinstance(message, Headway):
            self._vigil.note(rank, message, now)
            self.course.note_steps(message.before, message.reached, now)
            return []
        if isinstance(message, Call):
            told = Told(message.digest, message.inputs, message.text)
            return self._blame(self._agreement.call(rank, message.sequence, told, now), now)
        if isinstance(message, Gather):
            return self._gather(rank, message, now)
        if isinstance(message, Failed):
            return self._handle_failure(rank, message, now)
        if isinstance(message, Goodbye):
            return self._goodbye(rank, now)
        return self._fault(rank, f"sent a {type(message).__name__}, which ranks do not send", now)

    def _hello(self, identity: bytes, hello: Hello, now: float) -> list[Instruction]:
        problem = self._problem(identity, hello)
        if problem is not None:
            return [SendTo(identity, Refused(f"rank {hello.rank} was refused: {problem}"))]
        self._members[hello.rank] = _Member(identity, hello)
        self._ranks[identity] = hello.rank
        self._echoes[echo_name(hello.rank)] = hello.rank
        self._vigil.admit(hello.rank, now)
        if self._join_by is None:
            self._join_by = now + self._join_timeout
        if gone := [rank for rank in sorted(self._exits) if rank not in self._members and rank not in self._refusals]:
            return self._left_early(gone[0], now)
        if len(self._members) < self._size:
            return []
        self.phase, self.course.joined = Phase.RUNNING, now
        hellos = [self._members[rank].hello for rank in range(self._size)]
        hosts = self._roster.names(tuple(told.host for told in hellos))
        return self._to_all(Welcome(tuple(told.data_endpoint for told in hellos), hosts, self._attempt))

    def _problem(self, identity: bytes, hello: Hello) -> str | None:
        if self.phase is not Phase.JOINING:
            return self.finish.message or "all ranks have joined already"
        if hello.rank in self._members or identity in self._ranks:
            return f"rank {hello.rank} has joined already"
        return self._roster.misfit(hello, self._size)

    def _gather(self, rank: int, message: Gather, now: float) -> list[Instruction]:
        outcome = self._agreement.gather(rank, message.payload)
        if isinstance(outcome, tuple):
            return self._to_all(Gathered(message.sequence, (max(outcome),) if message.greatest else outcome))
        return self._blame(outcome, now)

    def _handle_failure(self, rank: int, message: Failed, now: float) -> list[Instruction]:
        during = f" during `{message.where}`" if message.where else ""
        if not message.request:
            return self._fault(rank, f"raised {message.text}{during}", now)
        self._refusals.note(rank, f"refused the request{during}: {message.text}", now)
        return []

    def _goodbye(self, rank: int, now: float) -> list[Instruction]:
        self._goodbyes += not self._members[rank].ended
        self._members[rank].ended = True
        if rank not in self._exits:
            self._vigil.end(rank)
        fault = self._agreement.end(rank)
        if fault is not None:
            return self._blame(fault, now)
        if self._goodbyes == self._size:
            return self._to_all(Goodbye(0, 0))
        return []

    # ----------------------------------------------------------------------------------------- processes, time, user

    def _handle_exit(self, rank: int, code: int, now: float) -> list[Instruction]:
        ended = rank in self._members and self._members[rank].ended
        self._exits[rank] = code = 0 if ended and code == UNTOLD else code
        self._vigil.forget(rank)
        if self.phase is Phase.STOPPING:
            return self._settle()
        if code == 2:
            self._refusals.note(rank, f"ended with exit status 2{self._during(rank)}", now, again=False)
        elif code != 0 or rank in self._refusals:
            return self._fault(rank, self._refusals.text(rank) or f"{ending(code)}{self._during(rank)}", now)
        elif rank in self._members:
            if not ended:
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
            self.finish = self._refusals.judge(self._roster.place)
        self.phase, self.course.ended = Phase.DONE, self._latest
        again = self._again and self.finish.status == 1
        return [*self._roster.end(self.finish.status, self.finish.message or "", again=again), self.finish]

    def _handle_interrupt(self, now: float) -> list[Instruction]:
        if self._closing is not None:
            self._closing.hurry()
            return self._roster.route(Kill(self._alive(), signal.SIGKILL))
        return self._stop(Finish(130, "interrupted", None), now, Closing(now, interrupted=True))

    def _tick(self, now: float) -> list[Instruction]:
        if self.phase is Phase.STOPPING:
            for rank, code in self._roster.unreachable(now).items():
                self._exits.setdefault(rank, code)
            return [*self._beat(now, agents=True), *self._press(now), *self._settle()]
        if self._join_by is None and self._roster.spread:
            self._join_by = now + self._join_timeout
        for node in self._roster.silent(now):
            return self.handle(HostFailed(node, self._roster.silence(node, now)), now)
        if self._refusals.is_due(now):
            return self._stop(self._refusals.judge(self._roster.place), now)
        fault = self._agreement.tick(now)
        if fault is not None:
            return self._blame(fault, now)
        verdict = self._vigil.look(now)
        if verdict is not None:
            return self._judge(verdict, now)
        if self.phase is Phase.JOINING and self._join_by is not None and now >= self._join_by:
            return self._late(now)
        late = self._vigil.late(now)
        told = [] if late is None else [Tell(late.describe(self._roster.place, self._called(late.rank)))]
        return [*told, *self._beat(now, agents=self._roster.spread, ranks=bool(self._members))]

    def _beat(self, now: float, *, agents: bool, ranks: bool = False) -> list[Instruction]:
        if now < self._beat_at or not (agents or ranks):
            return []
        self._beats, self._beat_at = self._beats + 1, now + BEAT_S
        beat = Heartbeat(0, self._beats)
        found = self._roster.beat(beat)
        if ranks:
            here = (echo for echo, rank in sorted(self._echoes.items()) if rank not in self._exits)
            found += [*self._to_all(beat), *(SendTo(echo, beat) for echo in here)]
        return found

    def _judge(self, verdict: Verdict, now: float) -> list[Instruction]:
        """Stop the run because a rank does not answer, or none gets on."""
        called = self._called(verdict.rank)
        node = self._roster.node_of(verdict.rank)
        if verdict.trouble is Trouble.SILENT and node in self._roster.silent(now, DOUBT_S):
            return self.handle(HostFailed(node, f"{self._roster.silence(node, now)}{called}"), now)
        text = verdict.describe(self._roster.place, called)
        at_fault = None if verdict.trouble is Trouble.STUCK else verdict.rank
        self._silent = (verdict.rank,) if verdict.trouble is Trouble.SILENT else ()
        return self._stop(Finish(1, text, at_fault), now, Closing(now, stuck=True))

    def _called(self, rank: int) -> str:
        return f", last call: `{last}`" if (last := self._agreement.last[rank]) else ", before its first call"

    def _press(self, now: float) -> list[Instruction]:
        """Do what it is time for with ranks that have not ended by themselves."""
        found: list[Instruction] = []
        for step in [] if self._closing is None else self._closing.due(now):
            if step is Step.TELL:
                text = readable(self.finish.message or "the request was refused", MAX_STRING // 4)
                found += self._to_all(Stop(text))
            elif step is Step.STACKS:
                asked = [(rank, self._members[rank].hello.stacks) for rank in self._alive() if rank in self._members]
                found += [do for rank, number in asked if number for do in self._roster.route(Dump(rank, number))]
            elif step is Step.KILL_SILENT:
                silent = tuple(rank for rank in self._silent if rank not in self._exits)
                found += self._roster.route(Kill(silent, signal.SIGKILL))
            else:
                number = signal.SIGTERM if step is Step.TERMINATE else signal.SIGKILL
                found += self._roster.route(Kill(self._alive(), number))
        return found

    # -------------------------------------------------------------------------------------------------------- faults

    def _late(self, now: float) -> list[Instruction]:
        if away := self._roster.missing():
            text = f"{self._roster.absence(away)} (waited {self._join_timeout:g} s)"
            return self._stop(Finish(1, text, None, away), now)
        missing = [rank for rank in range(self._size) if rank not in self._members]
        names = ", ".join(self._roster.place(rank) for rank in missing)
        text = f"{names} did not join within {self._join_timeout:g} s ({self._describe_members()})"
        advice = "every rank's program must reach the world; see its log, or raise --join-timeout"
        return self._stop(Finish(1, f"{text}; {advice}", missing[0]), now)

    def _left_early(self, rank: int, now: float) -> list[Instruction]:
        text = f"ended with exit status {self._exits[rank]} before it joined ({self._describe_members()})"
        return self._fault(rank, text, now)

    def _describe_members(self) -> str:
        names = [self._roster.place(rank) for rank in sorted(self._members)]
        return f"joined: {', '.join(names) or 'none'}"

    def _during(self, rank: int) -> str:
        if rank not in self._members:
            return " before it joined"
        return f" during `{last}`" if (last := self._agreement.last[rank]) else " before its first call"

    def _blame(self, fault: Fault | None, now: float) -> list[Instruction]:
        return [] if fault is None else self._fault(fault.rank, fault.text, now)

    def _fault(self, rank: int, text: str, now: float) -> list[Instruction]:
        return self._stop(Finish(1, f"{self._roster.place(rank)} {text}", rank), now)

    def _stop(self, finish: Finish, now: float, closing: Closing | None = None) -> list[Instruction]:
        """Stop all ranks, once: the first reason counts."""
        if self.phase is Phase.STOPPING:
            return []
        self.phase, self.course.faulted = Phase.STOPPING, now
        self.finish = finish
        self._closing = Closing(now) if closing is None else closing
        return [*self._press(now), *self._settle()]

    def _to_all(self, message: Message) -> list[Instruction]:
        return [
            SendTo(member.identity, message)
            for rank, member in sorted(self._members.items())
            if rank not in self._exits
        ]

    def _alive(self) -> tuple[int, ...]:
        return tuple(rank for rank in range(self._size) if rank not in self._exits)
