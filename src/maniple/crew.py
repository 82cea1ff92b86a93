"""A crew: processes that take legs of a search further beside this one.

The search would find the same without them, or with other ones: this process makes every leg that nobody has in hand,
and takes back those of a member that is lost.
"""

from __future__ import annotations

import selectors
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast, final

from maniple.frame import Inbox, send
from maniple.operators import graph_file
from maniple.regions.error import RunError
from maniple.strategies.soap.leg import unpacked

if TYPE_CHECKING:
    from types import TracebackType

    from maniple.strategies.soap.rounds import AbstractRoundStrategy, RoundState
    from maniple.strategies.strategy import Problem

__all__: list[str] = []

HIRE_S = 1.0
"""A search that ends sooner starts no processes."""
START_S = 5.0
"""A search that ends so soon starts none either: until a process is ready, half of that is over."""
TICK_S = 0.1
"""How long this process waits for members at a time."""
STOP_S = 0.25
"""How long members have to hand in their legs when a search ends."""


@dataclass(slots=True, eq=False)
class _Member:
    """A process, and the number of the leg that it has in hand."""

    process: subprocess.Popen[bytes]
    inbox: Inbox
    into: int
    ready: bool = False
    leg: int | None = None


@final
class Crew:
    """The members of a search's crew; a context that leaves no process behind.

    Args:
        strategy: what is searched with.
        problem: what is searched.
        most: how many members there are.
        proposals: how many the search makes in all, if that is known.
    """

    def __init__(
        self, strategy: AbstractRoundStrategy[Any], problem: Problem, most: int, proposals: int | None
    ) -> None:
        self._strategy, self._problem, self._most, self._proposals = strategy, problem, most, proposals
        self._members: list[_Member] = []
        self._selector = selectors.DefaultSelector()
        self._own: int | None = None
        self._hired = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in tuple(self._members):
            self._dismiss(member)
        self._selector.close()

    @property
    def ready(self) -> int:
        """How many members can take legs."""
        return sum(member.ready for member in self._members)

    @property
    def pids(self) -> tuple[int, ...]:
        """The members' processes."""
        return tuple(member.process.pid for member in self._members)

    def attend(self, state: RoundState, elapsed_s: float, left_s: float) -> None:
        """Start the members when it is time to, and wait for them while there is nothing to do here.

        Args:
            state: of the search.
            elapsed_s: seconds since the search began.
            left_s: seconds that it still has.
        """
        if not self._hired and elapsed_s >= HIRE_S and left_s >= START_S:
            self._hired = True
            for _ in range(self._most):
                self._hire()
        if not self._free(state) and any(member.leg is not None for member in self._members):
            self._selector.select(max(0.0, min(left_s, TICK_S)))

    def _hire(self) -> None:
        """Start a process; it takes part as soon as it is ready."""
        # A session of its own: Ctrl-C in the terminal comes to this process alone.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "maniple.crew_member"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        if process.stdin is None or process.stdout is None:
            raise RunError("search process: it was started without pipes")
        member = _Member(process, Inbox(process.stdout.fileno()), process.stdin.fileno())
        self._members.append(member)
        self._selector.register(member.inbox.pipe, selectors.EVENT_READ, member)

    def step(self, state: RoundState) -> RoundState:
        """The state after whatever has come from members, and one step made here if there is one to make."""
        state = self.gathered(state)
        if self._own not in self._free(state):
            self._own = next(iter(self._free(state)), None)
        self._hand_out(state)
        if self._own is not None:
            leg = state.legs[self._own]
            return cast("RoundState", self._strategy.with_legs(state, {self._own: leg.step(state.evaluation)}))
        if any(member.leg is not None for member in self._members):
            return state
        return cast("RoundState", self._strategy.next_round(state))

    def settled(self, state: RoundState) -> RoundState:
        """The state when the search is over: what members have found is in it as far as it counts."""
        until = time.monotonic() + STOP_S
        for member in tuple(self._members):
            if member.leg is not None:
                self._tell(member, "stop")
        while any(member.leg is not None for member in self._members) and time.monotonic() < until:
            state = self.gathered(state, max(0.0, until - time.monotonic()))
        return cast("RoundState", self._strategy.settled(state))

    def _free(self, state: RoundState) -> list[int]:
        """The numbers of the legs that go on and that no member has in hand."""
        out = {member.leg for member in self._members}
        return [
            number
            for number, (leg, most) in enumerate(zip(state.legs, self._limits(state), strict=True))
            if number not in out and not leg.finished and (most is None or leg.proposals < most)
        ]

    def _limits(self, state: RoundState) -> list[int | None]:
        """How many proposals each leg may make, so that all that come before it still may make theirs."""
        if self._proposals is None:
            return [None] * len(state.legs)
        left, found = self._proposals - state.incumbent.proposals, list[int | None]()
        for leg in state.legs:
            found.append(max(0, min(left, leg.most)) if leg.most else None)
            left -= leg.proposals if leg.finished else leg.most
        return found

    def _hand_out(self, state: RoundState) -> None:
        """Give members that have no leg those that wait, except this process's own."""
        free, limits = [number for number in self._free(state) if number != self._own], self._limits(state)
        for member in tuple(self._members):
            if member.ready and member.leg is None and free:
                number = free.pop(0)
                plain = state.legs[number].packed()
                if plain is not None:
                    member.leg = number
                    self._tell(member, "leg", number, limits[number], plain)

    def gathered(self, state: RoundState, seconds: float = 0.0) -> RoundState:
        """The state after what members have said, or say within some seconds."""
        for key, _ in self._selector.select(seconds):
            member: _Member = key.data
            alive = member.inbox.receive()
            for kind, *fields in member.inbox.messages():
                if kind == "hello":
                    self._tell(member, "problem", *self._described())
                elif kind == "ready":
                    member.ready = True
                elif kind == "leg":
                    number, plain = cast("tuple[int, list[object]]", fields)
                    state, member.leg = self._strategy.with_legs(state, {number: unpacked(plain)}), None
                else:
                    self._lose(member, f"it cannot take part: {fields[0]}")
            if not alive:
                self._lose(member, f"it ended with status {member.process.wait()}")
        return state

    def _described(self) -> tuple[object, ...]:
        graph, machine = self._problem.graph, self._problem.machine
        return graph_file.to_json(graph), machine.to_json(), graph.fingerprint(), machine.fingerprint()

    def _tell(self, member: _Member, *message: object) -> None:
        try:
            send(member.into, *message)
        except BrokenPipeError:
            self._lose(member, f"it ended with status {member.process.wait()}")

    def _lose(self, member: _Member, why: str) -> None:
        """Go on without a member."""
        if member in self._members:
            self._dismiss(member)
            left = len(self._members) + 1
            warnings.warn(f"a search process is lost: {why}; {left} go on, to the same plan", stacklevel=2)

    def _dismiss(self, member: _Member) -> None:
        self._members.remove(member)
        self._selector.unregister(member.inbox.pipe)
        member.process.kill()
        with member.process:  # waits, and closes the pipes
            pass
