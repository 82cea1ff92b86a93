"""A pool of workers: processes that take work items of a search further beside this one.

The search would find the same without them, or with other ones: this process makes every item that nobody has in hand,
and takes back those of a member that is lost. When all are in hand it makes the one that has been for longest as well,
so a member that has stopped answering costs no more than what it would have made:

    item  in the hand of        this process      comes first     comes later
    a     nobody                makes it at once  its own a
    b     a member, for longer  makes it then     its own b       the member's b: of a former round, not read
    c     another member        makes it last     the member's c
"""

from __future__ import annotations

import selectors
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast, final

from maniple.operators.graph import graph_file
from maniple.operators.training.optimizer_text import plain_optimizer
from maniple.pipe_codec import Inbox, Outbox
from maniple.process.error import RequestError, RunError
from maniple.strategies.interface.checked_strategy import class_of
from maniple.strategies.interface.parallel_search import address_of

if TYPE_CHECKING:
    from types import TracebackType

    from maniple.strategies.interface.parallel_search import AbstractParallelStrategy, Address, WorkItem
    from maniple.strategies.interface.strategy import Problem

__all__: list[str] = []

HIRE_S = 1.0
"""A search that ends sooner starts no processes."""
START_S = 5.0
"""A search that ends so soon starts none either: until a process is ready, half of that is over."""
STOP_S = 0.25
"""How long members have to hand in their items when a search ends."""


class _Assignment(NamedTuple):
    """An item in the hand of a member: how many were assigned before it, of which round it is, and its number there."""

    before: int
    round: int
    number: int


@dataclass(slots=True, eq=False)
class _Member:
    """A process, and what it has in hand."""

    process: subprocess.Popen[bytes]
    inbox: Inbox
    outbox: Outbox
    ready: bool = False
    assigned: _Assignment | None = None


@final
class WorkerPool:
    """The members of a search's pool; a context that leaves no process behind.

    Args:
        strategy: what is searched with.
        problem: what is searched.
        most: how many members there are.
        proposals: how many the search makes in all, if that is known.
    """

    def __init__(
        self, strategy: AbstractParallelStrategy[Any], problem: Problem, most: int, proposals: int | None
    ) -> None:
        self._strategy, self._problem, self._most, self._proposals = strategy, problem, most, proposals
        self._address: Address | None = None
        self._members: list[_Member] = []
        self._selector = selectors.DefaultSelector()
        self._own: int | None = None
        self._round = self._assigned = 0
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
        """How many members can take items."""
        return sum(member.ready for member in self._members)

    @property
    def pids(self) -> tuple[int, ...]:
        """The members' processes."""
        return tuple(member.process.pid for member in self._members)

    def attend(self, elapsed_s: float, left_s: float) -> None:
        """Start the members when it is time to; none where they could not import the strategy, which is said.

        Args:
            elapsed_s: seconds since the search began.
            left_s: seconds that it still has.
        """
        if self._hired or elapsed_s < HIRE_S or left_s < START_S:
            return
        self._hired = True
        try:
            self._address = address_of(class_of(self._strategy))
        except RequestError as error:
            warnings.warn(f"strategy {self._strategy.name!r} is searched with on one process: {error}", stacklevel=2)
            return
        for _ in range(self._most):
            self._hire()

    def _hire(self) -> None:
        """Start a process; it takes part as soon as it is ready."""
        # A session of its own: Ctrl-C in the terminal comes to this process alone.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "maniple.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        if process.stdin is None or process.stdout is None:
            raise RunError("search process: it was started without pipes")
        member = _Member(process, Inbox(process.stdout.fileno()), Outbox(process.stdin.fileno()))
        self._members.append(member)
        self._selector.register(member.inbox.pipe, selectors.EVENT_READ, member)

    def step(self, state: Any) -> Any:
        """The state after whatever has come from members, and one step made here; it never waits for them."""
        strategy, state = self._strategy, self.gather(state)
        items = strategy.items(state)
        self._own = self._next(state, items)
        self._hand_out(state, items)
        if self._own is not None:
            item = strategy.advance(items[self._own], strategy.bench_of(state))
            return strategy.with_item(state, self._own, item)
        self._stop()
        self._round += 1
        return strategy.next_round(state)

    def settle(self, state: Any) -> Any:
        """The state when the search is over: what members have found is in it as far as it counts."""
        until = time.monotonic() + STOP_S
        self._stop()
        while self._out() and time.monotonic() < until:
            state = self.gather(state, max(0.0, until - time.monotonic()))
        return self._strategy.settle(state)

    def _stop(self) -> None:
        """Ask for the items of this round back."""
        for member in tuple(self._members):
            if member.assigned is not None and member.assigned.round == self._round:
                self._tell(member, "stop")

    def _next(self, state: Any, items: tuple[WorkItem, ...]) -> int | None:
        """The number of the item that this process goes on with; None where the round has ended."""
        going, out = self._going(state, items), self._out()
        free = [number for number in going if number not in out]
        if self._own in free:
            return self._own
        if free:  # those that make no proposals can be made here alone
            return min(free, key=lambda number: (items[number].most > 0, number))
        return next((number for number in out if number in going), None)

    def _out(self) -> list[int]:
        """The numbers of the items of this round that members have in hand, that which has been for longest first."""
        assigned = sorted(member.assigned for member in self._members if member.assigned is not None)
        return [number for _, round_, number in assigned if round_ == self._round]

    def _going(self, state: Any, items: tuple[WorkItem, ...]) -> list[int]:
        """The numbers of the items that go on."""
        ways = enumerate(zip(items, self._limits(state, items), strict=True))
        return [n for n, (item, most) in ways if not item.finished and (most is None or item.proposals < most)]

    def _limits(self, state: Any, items: tuple[WorkItem, ...]) -> list[int | None]:
        """How many proposals each item may make, so that all that come before it still may make theirs."""
        if self._proposals is None:
            return [None] * len(items)
        left, found = self._proposals - self._strategy.before(state), list[int | None]()
        for item in items:
            found.append(max(0, min(left, item.most)) if item.most else None)
            left -= item.proposals if item.finished else item.most
        return found

    def _hand_out(self, state: Any, items: tuple[WorkItem, ...]) -> None:
        """Give members that have no item those that wait, except this process's own."""
        idle = [member for member in self._members if member.ready and member.assigned is None]
        if not idle:
            return
        limits, taken = self._limits(state, items), {self._own, *self._out()}
        for number in self._going(state, items):
            plain = items[number].pack() if idle and number not in taken else None
            if plain is not None:
                member = idle.pop(0)
                member.assigned = _Assignment(self._assigned, self._round, number)
                self._assigned += 1
                self._tell(member, "item", self._round, number, limits[number], plain)

    def gather(self, state: Any, seconds: float = 0.0) -> Any:
        """The state after what members have said, or say within some seconds."""
        for key, events in self._selector.select(seconds):
            member: _Member = key.data
            if member not in self._members:
                continue
            if events & selectors.EVENT_WRITE:
                self._flush(member)
                continue
            alive = member.inbox.receive()
            for kind, *fields in member.inbox.messages():
                if kind == "hello":
                    self._tell(member, "strategy", self._address, sys.path)
                    self._tell(member, "problem", *self._describe())
                elif kind == "ready":
                    member.ready = True
                elif kind == "item":
                    member.assigned = None
                    state = self.handed_in(state, *cast("tuple[int, int, list[Any]]", fields))
                else:
                    self._lose(member, f"it cannot take part: {fields[0]}")
            if not alive:
                self._lose_ended(member)
        return state

    def handed_in(self, state: Any, round_: int, number: int, plain: list[Any]) -> Any:
        """The state after a member's item, unless its round is over or this process has come as far."""
        if round_ != self._round:
            return state
        item = self._strategy.unpack(plain)
        if item.proposals <= self._strategy.items(state)[number].proposals:
            return state
        return self._strategy.with_item(state, number, item)

    def _describe(self) -> tuple[object, ...]:
        graph, machine, seed = self._problem.graph, self._problem.machine, str(self._problem.seed)
        optimizer = plain_optimizer(self._problem.optimizer)
        inside = None if self._problem.inside is None else self._problem.inside.text()
        given = graph_file.to_json(graph), machine.to_json(), seed, optimizer, inside
        return *given, graph.fingerprint(), machine.fingerprint()

    def _tell(self, member: _Member, *message: object) -> None:
        if member not in self._members:  # lost while it was told something else
            return
        member.outbox.put(*message)
        self._flush(member)

    def _flush(self, member: _Member) -> None:
        """Send what the member's pipe takes; the rest goes when it takes more."""
        try:
            sent = member.outbox.flush()
        except BrokenPipeError:
            self._lose_ended(member)
            return
        waiting = member.outbox.pipe in self._selector.get_map()
        if not sent and not waiting:
            self._selector.register(member.outbox.pipe, selectors.EVENT_WRITE, member)
        elif sent and waiting:
            self._selector.unregister(member.outbox.pipe)

    def _lose_ended(self, member: _Member) -> None:
        member.process.kill()  # one that has closed its pipes may live on
        self._lose(member, f"it ended with status {member.process.wait()}")

    def _lose(self, member: _Member, why: str) -> None:
        """Go on without a member."""
        if member in self._members:
            self._dismiss(member)
            left = len(self._members) + 1
            warnings.warn(f"a search process is lost: {why}; {left} go on, to the same plan", stacklevel=2)

    def _dismiss(self, member: _Member) -> None:
        self._members.remove(member)
        for pipe in (member.inbox.pipe, member.outbox.pipe):
            if pipe in self._selector.get_map():
                self._selector.unregister(pipe)
        member.process.kill()
        with member.process:  # waits, and closes the pipes
            pass
