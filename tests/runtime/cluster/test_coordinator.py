"""The coordinator, driven with plain values and a clock of its own: who is told what, and how the run ends."""

from __future__ import annotations

import signal
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.runtime.cluster.closing import STACKS_S
from maniple.runtime.cluster.coordinator import Coordinator
from maniple.runtime.cluster.coordinator_event import (
    Dump,
    Event,
    Finish,
    Garbled,
    Instruction,
    Interrupted,
    Kill,
    ProcessExited,
    Received,
    SendTo,
    Tell,
    Tick,
    Unread,
)
from maniple.runtime.cluster.phase import Phase
from maniple.runtime.control.control import echo_name
from maniple.runtime.transports.message import (
    PROTOCOL,
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
)

STACKS = 41


class Run:
    """A coordinator, its clock, and what its ranks would do: with each tick the echoes of those in `beating` answer."""

    def __init__(self, size: int, per_node: int = 1, join_timeout: float = 60.0, hang_timeout: float = 300.0) -> None:
        self.size, self.per_node, self.now = size, per_node, 100.0
        self.coordinator = Coordinator(size, per_node, join_timeout, hang_timeout)
        self.beating: set[int] = set()
        self.done: list[tuple[float, Instruction]] = []

    def hello(self, rank: int) -> Hello:
        node = rank // self.per_node
        return Hello(rank, node, 1000 + rank, f"host{node}", self.size, f"tcp://h:{rank}", PROTOCOL, STACKS)

    def take(self, event: Event) -> list[Instruction]:
        found = self.coordinator.handle(event, self.now)
        self.done += [(self.now, instruction) for instruction in found]
        return found

    def say(self, rank: int, message: Message) -> list[Instruction]:
        return self.take(Received(b"%d" % rank, message))

    def join(self, *ranks: int) -> list[Instruction]:
        found: list[Instruction] = []
        for rank in ranks or range(self.size):
            self.beating.add(rank)
            found = self.say(rank, self.hello(rank))
        return found

    def call(self, rank: int, number: int, text: str, digest: bytes | None = None) -> list[Instruction]:
        return self.say(rank, Call(number, text.encode() if digest is None else digest, b"", text))

    def exit(self, rank: int, code: int) -> list[Instruction]:
        self.beating.discard(rank)
        return self.take(ProcessExited(rank, code))

    def pass_time(self, seconds: float, *, obey: bool = False) -> list[Instruction]:
        """Tick every 0.1 s; with `obey` ranks end on the signals that they get, as processes do."""
        before = len(self.done)
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            for rank in sorted(self.beating):
                self.take(Received(echo_name(rank), Heartbeat(0, 1)))
            for instruction in self.take(Tick()):
                if obey and isinstance(instruction, Kill):
                    for rank in instruction.ranks:
                        self.exit(rank, -instruction.signal)
        return [instruction for _, instruction in self.done[before:]]

    def stops(self) -> set[str]:
        return {i.message.text for _, i in self.done if isinstance(i, SendTo) and isinstance(i.message, Stop)}

    def finish(self) -> Finish:
        finishes = [(t, i) for t, i in self.done if isinstance(i, Finish)]
        assert len(finishes) == 1
        assert self.done[-1] == finishes[0]
        assert self.coordinator.phase is Phase.DONE
        return finishes[0][1]


def sent(found: list[Instruction], kind: type[Message]) -> list[tuple[bytes, Message]]:
    return [(i.identity, i.message) for i in found if isinstance(i, SendTo) and isinstance(i.message, kind)]


# ------------------------------------------------------------------------------------------------- a run that goes well


@given(size=st.integers(1, 5), per_node=st.integers(1, 3))
def test_ranks_join_call_exchange_and_end(size: int, per_node: int) -> None:
    run = Run(size, per_node)
    welcomes = sent(run.join(), Welcome)
    endpoints = tuple(f"tcp://h:{rank}" for rank in range(size))
    hosts = tuple(f"host{rank // per_node}" for rank in range(size))
    assert welcomes == [(b"%d" % rank, Welcome(endpoints, hosts)) for rank in range(size)]
    for number in (1, 2):
        for rank in range(size):
            assert run.call(rank, number, f"step {number}") == []
    parts = [run.say(rank, Gather(1, b"%d" % rank)) for rank in range(size)]
    assert parts[:-1] == [[]] * (size - 1)
    payloads = tuple(b"%d" % rank for rank in range(size))
    assert sent(parts[-1], Gathered) == [(b"%d" % rank, Gathered(1, payloads)) for rank in range(size)]
    for says in (b" ", b"!"):  # rank 0 says it
        parts = [run.say(rank, Gather(2, b" " if rank else says, greatest=True)) for rank in range(size)]
        assert sent(parts[-1], Gathered) == [(b"%d" % rank, Gathered(2, (says,))) for rank in range(size)]
    farewells = [run.say(rank, Goodbye(rank, 2)) for rank in range(size)]
    assert farewells[:-1] == [[]] * (size - 1)
    assert sent(farewells[-1], Goodbye) == [(b"%d" % rank, Goodbye(0, 0)) for rank in range(size)]
    for rank in range(size):
        run.exit(rank, 0)
    assert run.finish() == Finish(0, None, None)


@given(order=st.permutations(range(4)))
def test_the_welcome_does_not_depend_on_the_order_of_joining(order: list[int]) -> None:
    run, other = Run(4), Run(4)
    assert run.join(*order) == other.join()


def test_a_program_that_never_joins_may_take_its_time_and_end() -> None:
    run = Run(2, join_timeout=1.0)
    assert run.pass_time(30) == []
    assert run.exit(1, 0) == []
    assert run.exit(0, 0) == [Finish(0, None, None)]
    assert run.take(Tick()) == []


def test_ranks_that_wait_for_others_hear_from_the_coordinator() -> None:
    run = Run(2)
    run.join(0)
    run.pass_time(5)
    beats = [t for t, i in run.done if isinstance(i, SendTo) and isinstance(i.message, Heartbeat)]
    # A rank gives the launcher up after 4 s of silence.
    assert beats
    assert all(later - earlier < 4.0 for earlier, later in pairwise([100.0, *beats, run.now]))


# ------------------------------------------------------------------------------------------------------------- joining


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": "maniple/99"}, f"expected protocol {PROTOCOL}, got maniple/99"),
        ({"world_size": 3}, "expected a world of 2 ranks, got one of 3"),
        ({"rank": 2, "node": 2}, "expected a rank of 0..1, got 2"),
        ({"rank": 0, "node": 0}, "rank 0 has joined already"),
        ({"node": 0}, "expected node 1 for rank 1, got 0"),
    ],
)
def test_a_wrong_hello_is_refused_and_forgotten(change: dict[str, Any], reason: str) -> None:
    run = Run(2)
    run.join(0)
    found = run.take(Received(b"stranger", replace(run.hello(1), **change)))
    [(identity, refused)] = sent(found, Refused)
    assert len(found) == 1
    assert identity == b"stranger"
    assert isinstance(refused, Refused)
    assert reason in refused.reason
    assert run.coordinator.phase is Phase.JOINING
    assert sent(run.join(1), Welcome), "the rank itself still joins"
    assert run.stops() == set()


def test_a_hello_while_ranks_run_changes_nothing() -> None:
    run = Run(2)
    run.join()
    found = run.take(Received(b"stranger", run.hello(0)))
    assert [to for to, _ in sent(found, Refused)] == [b"stranger"]
    assert len(found) == 1
    assert run.coordinator.phase is Phase.RUNNING
    assert run.call(0, 1, "step") == run.call(1, 1, "step") == []


def test_every_rank_that_does_not_come_is_named() -> None:
    run = Run(6, per_node=2, join_timeout=5.0)
    run.join(0, 1, 3)
    assert not any(isinstance(i, Kill) or sent([i], Stop) for i in run.pass_time(4.8))
    run.pass_time(10, obey=True)
    finish = run.finish()
    assert finish.status == 1
    assert finish.rank == 2
    assert finish.message is not None
    assert "node 1 (rank 2), node 2 (rank 4), node 2 (rank 5) did not join within 5 s" in finish.message
    assert "joined: node 0 (rank 0), node 0 (rank 1), node 1 (rank 3)" in finish.message


@pytest.mark.parametrize("first", ["join", "exit"])
def test_a_rank_that_ends_before_it_joins_is_at_fault(first: str) -> None:
    run = Run(2)
    if first == "join":
        run.join(0)
        run.exit(1, 0)
    else:
        run.exit(1, 0)
        run.join(0)
    [text] = run.stops()
    assert text.startswith("node 1 (rank 1) ended with exit status 0 before it joined")


def test_only_who_joined_may_speak_and_noise_at_the_port_fails_nothing() -> None:
    run = Run(2)
    for event in (Received(b"x", Heartbeat(0, 1)), Received(b"x", Goodbye(0, 0)), Garbled(b"x", "no message")):
        assert run.take(event) == []
    assert sent(run.join(), Welcome)
    run.take(Garbled(b"1", "garbage"))
    assert run.stops() == {"node 1 (rank 1) sent what is no message: garbage"}


# -------------------------------------------------------------------------------------------------------------- faults


def test_a_killed_rank_stops_the_others_with_one_message() -> None:
    run = Run(4, per_node=2)
    run.join()
    for rank in range(4):
        run.call(rank, 1, "trainer.step 17")
    found = run.exit(3, -9)
    [text] = run.stops()
    assert text.startswith("node 1 (rank 3) was killed by signal 9 (SIGKILL) during")
    assert "trainer.step 17" in text
    assert [to for to, _ in sent(found, Stop)] == [b"0", b"1", b"2"]
    for rank in (0, 1, 2):
        run.exit(rank, 1)
    assert run.finish() == Finish(1, text, 3)


@pytest.mark.parametrize(
    ("code", "what"), [(3, "ended with exit status 3"), (-11, "was killed by signal 11 (SIGSEGV)")]
)
def test_the_ending_of_a_process_is_named(code: int, what: str) -> None:
    run = Run(2)
    run.join()
    run.exit(1, code)
    assert run.stops() == {f"node 1 (rank 1) {what} before its first call"}


def test_a_failure_says_more_than_the_exit_that_follows() -> None:
    run = Run(2)
    run.join()
    run.say(1, Failed(1, "trainer.step 3", "ValueError: no", request=False))
    run.exit(1, 1)
    run.exit(0, 1)
    finish = run.finish()
    assert (finish.status, finish.rank) == (1, 1)
    assert finish.message == "node 1 (rank 1) raised ValueError: no during `trainer.step 3`"


def test_the_first_fault_is_the_one_that_counts() -> None:
    run = Run(3)
    run.join()
    run.exit(1, -9)
    run.say(2, Failed(2, "", "OSError: peer gone", request=False))
    run.exit(0, 1)
    run.exit(2, 1)
    assert run.finish().rank == 1


def test_a_silent_rank_is_named_and_killed_after_all_have_written_their_stacks() -> None:
    run = Run(3)
    run.join()
    for rank in range(3):
        run.call(rank, 1, "step 1")
    run.beating.discard(1)
    assert not any(isinstance(i, Kill | Dump) for i in run.pass_time(4.9))
    begin = len(run.done)
    run.pass_time(0.8)
    steps = [i for _, i in run.done[begin:] if isinstance(i, Kill | Dump) or sent([i], Stop)]
    assert steps[:4] == [*(Dump(rank, STACKS) for rank in range(3)), Kill((1,), signal.SIGKILL)]
    assert len(sent(steps[4:], Stop)) == len(steps[4:]) == 3
    [text] = run.stops()
    assert text.startswith("node 1 (rank 1) has not answered for 5 s (stopped or unreachable), last call: ")
    assert "step 1" in text


def test_a_rank_whose_interpreter_is_held_is_alive() -> None:
    run = Run(2)
    run.join()
    run.call(0, 1, "step 1")
    run.say(0, Headway(0, 1, waits=True, patience=0))
    run.pass_time(60.0)  # not a word of rank 1, whose echo answers
    assert run.stops() == set()


def test_a_rank_that_is_waited_for_and_does_not_get_on_is_named() -> None:
    run = Run(3, hang_timeout=20.0)
    run.join()
    for rank in range(3):
        run.call(rank, 1, "step 1")
    for _ in range(45):
        for rank in (0, 2):
            run.say(rank, Headway(rank, 7, waits=True, patience=0))
        run.pass_time(0.5)
    [text] = run.stops()
    assert text.startswith("node 1 (rank 1) has not got on for 20 s while node 0 (rank 0) waits, last call: `step 1`")
    assert "busy(seconds)" in text
    assert "--hang-timeout" in text
    assert Dump(1, STACKS) in [i for _, i in run.done]


def test_a_rank_that_is_late_is_told_to_the_user_and_the_run_goes_on() -> None:
    run = Run(2)
    run.join()
    for rank in range(2):
        run.call(rank, 1, "step 1")
    for _ in range(60):
        run.say(0, Headway(0, 7, waits=True, patience=0))
        run.say(1, Headway(1, 7, waits=False, patience=0, doing="linear[0] on processor 1"))
        run.pass_time(0.5)
    assert [i.text for _, i in run.done if isinstance(i, Tell)] == [
        (
            "node 1 (rank 1) is late: node 0 (rank 0) has waited 20 s for it, in task `linear[0] on processor 1`, last "
            "call: `step 1`"
        )
    ]
    assert run.stops() == set()


def test_the_course_of_a_run_is_noted() -> None:
    run = Run(2)
    begun = run.now
    run.pass_time(2.0)
    run.join()
    for now, reached in ((3.0, 30), (1.0, 31), (1.0, 37)):
        run.pass_time(now)
        run.say(1, Headway(1, reached, waits=False, patience=0, before=30, reached=reached))
    run.exit(1, -9)
    run.pass_time(0.5)
    run.exit(0, 1)
    course = run.coordinator.course
    times = [course.begun, course.joined, course.stepped, course.faulted, course.ended]
    assert [round(0.0 if each is None else each - begun, 1) for each in times] == [0.1, 2.0, 6.0, 7.0, 7.5]
    assert (course.before, course.reached) == (30, 37)


def test_ranks_that_all_wait_end_without_blame() -> None:
    run = Run(2, hang_timeout=20.0)
    run.join()
    for _ in range(60):
        for rank in range(2):
            run.say(rank, Headway(rank, 7, waits=True, patience=0))
        for instruction in run.pass_time(0.5):
            if isinstance(instruction, Kill):
                for rank in instruction.ranks:
                    run.exit(rank, -instruction.signal)
    finish = run.finish()
    assert (finish.status, finish.rank) == (1, None)
    assert finish.message is not None
    assert finish.message.startswith("no rank has got on for 20 s, all wait; node 0 (rank 0) waits longest")


def test_a_rank_that_does_not_read_is_at_fault_and_a_stranger_is_not() -> None:
    run = Run(2)
    run.join()
    assert run.take(Unread(b"stranger")) == run.take(Unread(echo_name(1))) == []
    run.take(Unread(b"1"))
    assert run.stops() == {"node 1 (rank 1) does not read what it is told"}


@given(st.data())
def test_no_connection_but_a_members_changes_anything(data: st.DataObject) -> None:
    """Whatever others say, before and while ranks run: not one instruction but a refusal, and no rank at fault."""
    run, quiet = Run(2), Run(2)
    if data.draw(st.booleans()):
        run.join()
        quiet.join()
    strangers = st.sampled_from([b"", b"2", b"rank 0", echo_name(2), bytes(5)])
    for _ in range(data.draw(st.integers(1, 8))):
        event = data.draw(
            st.builds(Garbled, strangers, st.just("no message"))
            | st.builds(Unread, strangers)
            | st.builds(
                Received,
                strangers,
                st.builds(
                    Hello,
                    st.integers(2, 9),
                    st.integers(0, 3),
                    *[st.just(1), st.just("h"), st.integers(1, 3)],
                    st.just("e"),
                    st.sampled_from([PROTOCOL, "other"]),
                    st.just(0),
                )
                | st.builds(Call, st.integers(0, 3), st.binary(max_size=2), st.just(b""), st.just("a"))
                | st.builds(Failed, st.integers(0, 2), st.just(""), st.just("t"), st.booleans())
                | st.builds(Gather, st.integers(0, 3), st.just(b""))
                | st.builds(Headway, st.integers(0, 2), st.integers(0, 9), st.booleans(), st.integers(0, 9))
                | st.builds(Goodbye, st.integers(0, 2), st.integers(0, 3)),
            )
        )
        for found in run.take(event):
            assert isinstance(found, SendTo)
            assert isinstance(found.message, Refused)
            assert found.identity == event.identity
        assert run.coordinator.phase is quiet.coordinator.phase
        assert run.coordinator._agreement.pending() == 0
    assert len(run.coordinator._members) == len(quiet.coordinator._members)
    assert run.stops() == set()


def test_a_launcher_that_was_suspended_blames_nobody() -> None:
    run = Run(2, join_timeout=60.0)
    run.join()
    run.now += 3600
    run.take(Tick())
    assert run.stops() == set()
    run.beating.clear()
    run.pass_time(6.0)
    assert len(run.stops()) == 1


@pytest.mark.parametrize("signals_needed", [signal.SIGTERM, signal.SIGKILL])
def test_whoever_does_not_stop_is_ended_within_ten_seconds(signals_needed: signal.Signals) -> None:
    run = Run(3)
    run.join()
    run.exit(0, -9)
    start = run.now
    kills = []
    for _ in range(100):
        for instruction in run.pass_time(0.1):
            if isinstance(instruction, Kill):
                kills.append((instruction.ranks, instruction.signal))
                if instruction.signal == signals_needed:
                    for rank in instruction.ranks:
                        run.exit(rank, -instruction.signal)
    expected = [((1, 2), signal.SIGTERM), ((1, 2), signal.SIGKILL)]
    assert kills == expected[: 1 if signals_needed == signal.SIGTERM else 2]
    finished = next(t for t, i in run.done if isinstance(i, Finish))
    assert finished - start < 10
    assert run.finish().rank == 0


# ---------------------------------------------------------------------------------------------------- calls that differ


def test_two_ranks_that_call_different_things() -> None:
    run = Run(2)
    run.join()
    run.call(0, 1, "trainer.evaluate")
    run.call(1, 1, "trainer.step 1")
    assert run.stops() == {
        "node 1 (rank 1) diverged at call 1: it called `trainer.step 1`, node 0 (rank 0) called `trainer.evaluate`"
    }


def test_inputs_that_differ_are_called_so() -> None:
    run = Run(2)
    run.join()
    run.say(0, Call(1, b"a", b"\x8f", "trainer.step 3"))
    run.say(1, Call(1, b"b", b"\x9a", "trainer.step 3"))
    [text] = run.stops()
    assert text.startswith("node 1 (rank 1) diverged at call 1: its inputs differ")
    assert "inputs 9a" in text
    assert "inputs 8f" in text


@given(odd=st.integers(0, 2), order=st.permutations(range(3)))
def test_of_three_ranks_the_minority_is_at_fault(odd: int, order: list[int]) -> None:
    run = Run(3)
    run.join()
    for rank in order:
        run.call(rank, 1, "other" if rank == odd else "same")
    [text] = run.stops()
    assert text.startswith(f"node {odd} (rank {odd}) diverged at call 1: it called `other`")


def test_a_difference_is_judged_even_if_a_third_rank_never_calls() -> None:
    run = Run(3)
    run.join()
    run.call(0, 1, "a")
    run.call(2, 1, "b")
    run.pass_time(3)
    [text] = run.stops()
    assert text.startswith("node 2 (rank 2) diverged at call 1")


@pytest.mark.parametrize("goodbye_first", [True, False])
def test_a_rank_that_ends_before_the_others_is_at_fault(goodbye_first: bool) -> None:
    run = Run(2)
    run.join()
    for number in range(1, 5):
        run.call(0, number, f"step {number}")
        run.call(1, number, f"step {number}")
    if goodbye_first:
        run.say(1, Goodbye(1, 4))
    run.call(0, 5, "step 5")
    if not goodbye_first:
        run.say(1, Goodbye(1, 4))
    assert run.stops() == {"node 1 (rank 1) ended after call 4; node 0 (rank 0) went on to call 5 `step 5`"}


def test_a_rank_that_ends_while_another_exchanges_is_at_fault() -> None:
    run = Run(2)
    run.join()
    run.say(0, Gather(1, b""))
    run.say(1, Goodbye(1, 0))
    [text] = run.stops()
    assert text.startswith("node 1 (rank 1) ended")


def test_what_all_ranks_have_told_is_forgotten() -> None:
    run = Run(2)
    run.join()
    for number in range(1, 200):
        run.call(0, number, "step")
        run.call(1, number, "step")
    assert run.coordinator._agreement.pending() == 0


# --------------------------------------------------------------------------------------- wrong requests, interruptions


@pytest.mark.parametrize("told", [True, False])
def test_a_request_that_every_rank_refuses_ends_with_status_2_and_no_second_message(told: bool) -> None:
    run = Run(2)
    run.join()
    for rank in (1, 0):
        if told:
            run.say(rank, Failed(rank, "", "plan.json: no such file", request=True))
        run.exit(rank, 2)
    assert run.finish() == Finish(2, None, None)


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("told", [True, False])
def test_a_request_that_one_rank_refuses_while_rank_0_is_late_ends_with_status_2(told: bool, joins: bool) -> None:
    """As an unknown mapper or strategy does on a busy host, where rank 0 still imports after seconds."""
    run = Run(2)
    if joins:
        run.join()
        if told:
            run.say(1, Failed(1, "", "strategy 'x': there is no such strategy", request=True))
    run.exit(1, 2)
    run.pass_time(12, obey=True)
    finish = run.finish()
    assert (finish.status, finish.rank) == (2, 1)
    assert finish.message is not None
    assert finish.message.startswith(
        "node 1 (rank 1) refused the request: strategy 'x'"
        if told and joins
        else "node 1 (rank 1) ended with exit status 2"
    )


def test_rank_0_that_comes_after_another_has_refused_is_waited_for() -> None:
    """An unknown strategy is refused before a rank joins: rank 1 is through with it as rank 0 says hello."""
    run = Run(2)
    run.exit(1, 2)
    run.join(0)
    run.exit(0, 2)
    assert run.finish() == Finish(2, None, None)


def test_a_rank_that_does_not_end_after_a_refused_request_is_ended() -> None:
    run = Run(2)
    run.join()
    run.exit(0, 2)
    start = run.now
    run.pass_time(12, obey=True)
    assert run.finish().status == 2
    assert next(t for t, i in run.done if isinstance(i, Finish)) - start < 10


def test_an_interrupt_terminates_and_a_second_one_kills() -> None:
    run = Run(2)
    run.join()
    assert run.take(Interrupted())[2:] == [Dump(0, STACKS), Dump(1, STACKS)]
    assert Kill((0, 1), signal.SIGTERM) in run.pass_time(STACKS_S + 0.1)
    run.exit(0, -15)
    assert Kill((1,), signal.SIGKILL) in run.take(Interrupted())
    run.exit(1, -9)
    assert run.finish().status == 130


def test_an_interrupted_rank_that_ignores_it_is_killed() -> None:
    run = Run(1)
    run.take(Interrupted())
    assert Kill((0,), signal.SIGKILL) in run.pass_time(5)
    run.exit(0, -9)
    assert run.finish().status == 130


@given(
    events=st.lists(
        st.one_of(
            st.builds(ProcessExited, st.integers(0, 2), st.sampled_from([0, 1, 2, -9, -64])),
            st.just(Interrupted()),
            st.just(Tick()),
            st.builds(
                Received,
                st.sampled_from([b"0", b"1", b"2", b"x"]),
                st.sampled_from(
                    [Heartbeat(0, 1), Call(1, b"", b"", "a"), Call(1, b"b", b"", "b"), Gather(1, b""), Goodbye(1, 0)]
                    + [Hello(r, r, 1, "h", 3, "e", PROTOCOL, STACKS) for r in range(3)]
                    + [Failed(1, "", "t", request=False), Failed(1, "", "t", request=True), Stop(""), Welcome((), ())]
                ),
            ),
        ),
        max_size=25,
    )
)
def test_whatever_happens_the_run_ends_once_all_processes_have(events: list[Event]) -> None:
    run = Run(3)
    gone: set[int] = set()
    for event in events:
        run.now += 0.05
        if isinstance(event, ProcessExited):
            if event.rank in gone:
                continue  # a process ends once
            gone.add(event.rank)
        run.take(event)
    for rank in sorted({0, 1, 2} - gone):
        run.take(ProcessExited(rank, 0))
    finish = run.finish()
    assert finish.status in {0, 1, 2, 130}
    assert (finish.message is None) == (finish.status in {0, 2})
    assert run.take(Tick()) == []


def test_a_stopped_rank_that_said_goodbye_does_not_hold_the_run_for_ever() -> None:
    run = Run(2)
    run.join()
    run.say(1, Goodbye(1, 0))
    run.beating.discard(1)  # it waits for rank 0's goodbye, and beats until then
    run.pass_time(30, obey=True)
    assert run.finish().rank == 1
