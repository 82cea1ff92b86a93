"""Agreement: who is blamed for a difference, against a table of programs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maniple.runtime.control.agreement import Agreement, Fault, Told
from maniple.runtime.control.control import Roll


class Rank:
    """A rank's program as the agreement sees it."""

    def __init__(self, agreement: Agreement, rank: int) -> None:
        self.agreement = agreement
        self.rank = rank
        self.roll = Roll()

    def call(self, text: str, inputs: bytes = b"", now: float = 0.0) -> Fault | None:
        short = self.roll.add(text, inputs)
        return self.agreement.call(self.rank, self.roll.sequence, Told(self.roll.digest, short, text), now)


def ranks(size: int) -> list[Rank]:
    agreement = Agreement(size)
    return [Rank(agreement, rank) for rank in range(size)]


def test_equal_programs_agree_in_any_order_and_leave_nothing_behind() -> None:
    a, b = ranks(2)
    for text in "xyz":
        assert a.call(text, b"1") is None
    assert a.agreement.pending() == 3
    for text in "xyz":
        assert b.call(text, b"1") is None
    assert a.agreement.pending() == 0


def test_of_two_ranks_the_one_that_differs_from_rank_0_is_blamed() -> None:
    a, b = ranks(2)
    assert b.call("trainer.step 3") is None
    assert a.call("trainer.evaluate") == Fault(
        1, "diverged at call 1: it called `trainer.step 3`, node 0 (rank 0) called `trainer.evaluate`"
    )


def test_other_inputs_of_the_same_call_are_called_so() -> None:
    a, b = ranks(2)
    a.call("trainer.step 3", b"one")
    fault = b.call("trainer.step 3", b"two")
    assert fault is not None
    assert fault.rank == 1
    assert fault.text.startswith("diverged at call 1: its inputs differ: it called `trainer.step 3 inputs ")


def test_inputs_in_the_text_are_called_so_too() -> None:
    a, b = ranks(2)
    a.call("trainer.step 3 inputs 8f")
    fault = b.call("trainer.step 3 inputs 9a")
    assert fault is not None
    assert "its inputs differ" in fault.text


def test_text_and_inputs_do_not_run_into_each_other() -> None:
    a, b = ranks(2)
    a.call("x", b"y")
    assert b.call("xy") is not None


def test_of_three_ranks_the_minority_is_blamed_even_if_it_is_rank_0() -> None:
    a, b, c = ranks(3)
    assert a.call("odd") is None
    assert b.call("even") is None  # who is right is not known yet
    fault = c.call("even")
    assert fault is not None
    assert fault == Fault(0, "diverged at call 1: it called `odd`, node 1 (rank 1) called `even`")


def test_a_third_rank_that_is_silent_is_not_waited_for_long() -> None:
    a, b, _ = ranks(3)
    a.call("x", now=5.0)
    assert b.call("y", now=5.0) is None
    assert a.agreement.tick(5.9) is None
    fault = a.agreement.tick(6.0)
    assert fault is not None
    assert fault.rank == 1


def test_a_call_past_the_end_of_another_rank() -> None:
    a, b = ranks(2)
    a.call("x")
    b.call("x")
    assert b.agreement.end(1) is None
    assert a.call("more") == Fault(1, "ended after call 1; node 0 (rank 0) went on to call 2 `more`")


def test_an_end_before_a_call_that_another_rank_made() -> None:
    a, b = ranks(2)
    a.call("x")
    assert b.agreement.end(1) == Fault(1, "ended before its first call; node 0 (rank 0) went on to call 1 `x`")


def test_ends_of_equal_programs_agree() -> None:
    a, b = ranks(2)
    for rank in (a, b):
        rank.call("x")
        assert rank.agreement.end(rank.rank) is None


def test_gathers_complete_in_rank_order_and_are_forgotten() -> None:
    a, b, c = ranks(3)
    assert c.agreement.gather(2, b"c") is None
    assert a.agreement.gather(0, b"a") is None
    assert b.agreement.gather(1, b"b") == (b"a", b"b", b"c")
    assert a.agreement.pending() == 0


def test_a_gather_that_an_ended_rank_will_never_join() -> None:
    for early in (True, False):
        a, b = ranks(2)
        a.call("x")
        b.call("x")
        outcomes = [b.agreement.end(1)] if early else []
        outcomes.append(a.agreement.gather(0, b""))
        if not early:
            outcomes.append(b.agreement.end(1))
        assert outcomes == [None, Fault(1, "ended after call 1; node 0 (rank 0) waits for it in `x`")]


def test_gathers_at_different_calls_diverge() -> None:
    a, b = ranks(2)
    a.call("x")
    assert a.agreement.gather(0, b"") is None
    fault = b.agreement.gather(1, b"")
    assert isinstance(fault, Fault)
    assert fault.rank == 1
    assert "after no call" in fault.text


def test_a_call_while_another_rank_exchanges_values_diverges() -> None:
    for late in (True, False):
        a, b, _ = ranks(3)
        outcomes = [] if late else [a.call("x")]
        outcomes.append(b.agreement.gather(1, b""))
        if late:
            outcomes.append(a.call("x"))
        assert outcomes[0] is None
        assert outcomes[1] == Fault(
            1, "diverged: it exchanges values after no call, node 0 (rank 0) has made call 1 `x`"
        )


def test_a_higher_rank_that_goes_on_while_a_lower_one_exchanges_values_is_blamed() -> None:
    a, b = ranks(2)
    a.agreement.gather(0, b"")
    text = "diverged: it has made call 1 `x`, node 0 (rank 0) exchanges values after no call"
    assert b.call("x") == Fault(1, text)


def test_a_call_out_of_sequence_is_refused() -> None:
    agreement = Agreement(2)
    fault = agreement.call(1, 2, Told(b"", b"", "x"), 0.0)
    assert fault == Fault(1, "told call 2 after call 0")


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from([b"", b"1", b"2"])), min_size=1, max_size=8),
    st.integers(2, 4),
    st.data(),
)
def test_one_changed_call_is_found_exactly_there(
    program: list[tuple[str, bytes]], size: int, data: st.DataObject
) -> None:
    odd = data.draw(st.integers(1, size - 1))
    place = data.draw(st.integers(0, len(program)))  # len: nothing is changed
    world = ranks(size)
    left = [list(enumerate(program)) for _ in range(size)]
    faults: list[Fault] = []
    while any(left) and not faults:
        rank = data.draw(st.sampled_from([rank for rank in range(size) if left[rank]]))
        number, (text, inputs) = left[rank].pop(0)
        text = "other" if rank == odd and number == place else text
        fault = world[rank].call(text, inputs)
        faults += [fault] if fault else []
    if place == len(program):
        assert not faults
        assert world[0].agreement.pending() == 0
    else:
        assert faults[0].rank == odd
        assert f"diverged at call {place + 1}:" in faults[0].text
