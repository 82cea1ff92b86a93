"""The roster of hosts, with the coordinator that asks it: who is admitted, who is refused and why, and who is named."""

from __future__ import annotations

import signal

import pytest

from maniple.runtime.cluster.coordinator import Coordinator
from maniple.runtime.cluster.coordinator_event import (
    Finish,
    Instruction,
    Interrupted,
    Kill,
    ProcessExited,
    Received,
    SendTo,
    Tick,
)
from maniple.runtime.cluster.phase import Phase
from maniple.runtime.cluster.roster import Roster, Seat
from maniple.runtime.transports.agent_message import Admitted, AgentHello, Exited, Interrupt, Over, Signal
from maniple.runtime.transports.message import PROTOCOL, Heartbeat, Hello, Message, Refused, Welcome

TERMS = ("maniple 1.0", "script abc")


class Hosts:
    """A run of two nodes of two ranks: alpha, where the coordinator is, and beta, whose agent is `agent`."""

    def __init__(self) -> None:
        seats = [Seat("alpha", "10.0.0.1", home=True), Seat()]
        self.roster = Roster(seats, 2, TERMS, "start it there")
        self.coordinator = Coordinator(4, 2, 60.0, roster=self.roster)
        self.now = 10.0
        self.answers = True

    def say(self, message: Message, identity: bytes = b"agent") -> list[Instruction]:
        return self.coordinator.handle(Received(identity, message), self.now)

    def greet(self, **changes: object) -> list[Instruction]:
        told = {"node": 1, "nodes": 2, "ranks_per_node": 2, "host": "beta", "address": "10.0.0.2", "logs": "/l"}
        return self.say(AgentHello(**{**told, "terms": TERMS, **changes}))  # type: ignore[arg-type]

    def join(self) -> list[Instruction]:
        found: list[Instruction] = []
        for rank in range(4):
            found = self.say(Hello(rank, rank // 2, 1, "same", 4, "tcp://h:1", PROTOCOL, 0), b"%d" % rank)
        return found

    def pass_time(self, seconds: float) -> list[Instruction]:
        found: list[Instruction] = []
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            found += self.coordinator.handle(Tick(), self.now)
            if self.answers:
                found += self.say(Heartbeat(0, 1))
            for rank in range(4 if self.answers else 2):
                found += self.say(Heartbeat(0, 1), b"echo %d" % rank)
        return found


def messages(found: list[Instruction], kind: type[Message]) -> list[Message]:
    return [one.message for one in found if isinstance(one, SendTo) and isinstance(one.message, kind)]


def finish(found: list[Instruction]) -> Finish:
    (last,) = [one for one in found if isinstance(one, Finish)]
    return last


def test_ranks_of_an_admitted_host_have_its_name() -> None:
    run = Hosts()
    assert messages(run.greet(), Admitted) == [Admitted(1)]
    assert messages(run.join(), Welcome)[0].hosts == ("alpha", "alpha", "beta", "beta")  # type: ignore[union-attr]


def test_hosts_of_one_name_are_told_apart_by_address() -> None:
    run = Hosts()
    run.greet(host="alpha")
    names = ("alpha@10.0.0.1",) * 2 + ("alpha@10.0.0.2",) * 2
    assert messages(run.join(), Welcome)[0].hosts == names  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"nodes": 3}, "expected --nnodes 2, as where the run began, got 3"),
        ({"node": 2}, "expected a --node-rank of 0..1, got 2"),
        ({"node": 0}, "--node-rank 0 is taken by host alpha (10.0.0.1); give every host a --node-rank of its own"),
    ],
)
def test_a_host_without_a_place_is_refused_and_the_run_goes_on(changes: dict[str, object], why: str) -> None:
    run = Hosts()
    assert messages(run.greet(**changes), Refused) == [Refused(f"host beta was refused: {why}")]
    assert run.coordinator.phase is Phase.JOINING
    assert messages(run.greet(), Admitted) == [Admitted(1)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"address": "10.0.0.1"}, "it has address 10.0.0.1, as host alpha (node 0); give each host one address"),
        ({"ranks_per_node": 1}, "expected --ranks-per-node 2, got 1"),
        ({"terms": ("maniple 2.0", "script abc")}, "maniple: expected 1.0, as where the run began, got 2.0"),
        ({"terms": ("maniple 1.0", "script abd")}, "script: expected abc, as where the run began, got abd"),
        ({"terms": ("maniple 1.0",)}, "script: expected abc, as where the run began, got none"),
    ],
)
def test_a_host_that_differs_ends_the_run_with_its_name(changes: dict[str, object], why: str) -> None:
    run = Hosts()
    found = run.greet(**changes)
    (refused,) = messages(found, Refused)
    assert why in refused.reason  # type: ignore[union-attr]
    for rank in (0, 1):
        found += run.coordinator.handle(ProcessExited(rank, 1), run.now)
    found += run.pass_time(0.1)
    assert finish(found).status == 1
    assert f"host beta (node 1, ranks 2, 3) was refused: {why}" in str(finish(found).message)


def test_an_end_that_an_agent_tells_of_is_its_ranks() -> None:
    run = Hosts()
    run.greet()
    run.join()
    found = run.say(Exited(3, 0, signal.SIGKILL, "last words"))
    assert run.roster.tails == {3: "last words"}
    for rank in (0, 1):
        found += run.coordinator.handle(ProcessExited(rank, 1), run.now)
    found += run.say(Exited(2, 1, 0, ""))
    text = "node 1 (rank 3) on host beta was killed by signal 9 (SIGKILL) before its first call"
    assert finish(found) == Finish(1, text, 3)
    assert messages(found, Over) == [Over(1, text, again=False)]


def test_a_host_may_tell_of_its_own_ranks_alone() -> None:
    run = Hosts()
    run.greet()
    run.join()
    run.say(Exited(0, 0, 0, ""))
    assert run.coordinator.phase is Phase.STOPPING


def test_an_interrupt_of_any_user_is_everybodys() -> None:
    for tell in (lambda run: run.say(Interrupt(1)), lambda run: run.coordinator.handle(Interrupted(), run.now)):
        run = Hosts()
        run.greet()
        run.join()
        found = tell(run) + run.pass_time(1.0)
        assert Kill((0, 1), signal.SIGTERM) in found
        assert messages(found, Signal) == [Signal(rank, signal.SIGTERM, group=True) for rank in (2, 3)]
        for rank in (0, 1):
            found += run.coordinator.handle(ProcessExited(rank, -15), run.now)
        for rank in (2, 3):
            found += run.say(Exited(rank, 0, 15, ""))
        assert finish(found).status == 130
        assert messages(found, Over) == [Over(130, "interrupted", again=False)]


def test_a_silent_host_is_named_and_nobody_waits_for_its_ranks() -> None:
    run = Hosts()
    run.greet()
    run.join()
    run.pass_time(2.0)
    assert run.coordinator.phase is Phase.RUNNING
    run.answers = False
    start = run.now
    found = run.pass_time(6.0)
    for rank in (0, 1):
        found += run.coordinator.handle(ProcessExited(rank, 1), run.now)
    found += run.pass_time(0.2)
    assert run.now - start < 10.0
    assert str(finish(found).message).startswith("host beta (node 1, ranks 2, 3) has not answered for 5 s: it is down")
    assert (finish(found).rank, finish(found).lost) == (None, (1,))


def test_a_host_that_does_not_come_is_named() -> None:
    run = Hosts()
    found = run.pass_time(61.0)
    for rank in (0, 1):
        found += run.coordinator.handle(ProcessExited(rank, 1), run.now)
    found += run.pass_time(0.1)
    expected = "no agent came from the host of node 1 (ranks 2, 3); start it there (waited 60 s)"
    assert finish(found) == Finish(1, expected, None, lost=(1,))


def test_a_host_that_comes_too_late_is_refused_with_the_reason() -> None:
    run = Hosts()
    run.pass_time(61.0)
    (refused,) = messages(run.greet(), Refused)
    assert "no agent came from" in refused.reason  # type: ignore[union-attr]
