"""The control plane as one rank sees it: places, rolling hashes, and a world of one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.process.error import RunError
from maniple.runtime.control.control import RankStopped, Roll, SoloControl, place


@pytest.mark.parametrize(
    ("rank", "per_node", "wanted"),
    [(0, 1, "node 0 (rank 0)"), (3, 1, "node 3 (rank 3)"), (3, 2, "node 1 (rank 3)"), (3, 4, "node 0 (rank 3)")],
)
def test_places(rank: int, per_node: int, wanted: str) -> None:
    assert place(rank, per_node) == wanted


def test_a_stop_is_a_failure_of_the_run() -> None:
    assert issubclass(RankStopped, RunError)


def test_nobody_disagrees_with_a_rank_alone() -> None:
    control = SoloControl()
    control.call("step", b"inputs")
    assert control.gather(b"mine") == [b"mine"]
    assert control.greatest(b"mine") == b"mine"
    control.on_stop(lambda error: pytest.fail("nobody stops it"))
    control.fail("here", "an error that its caller has")
    control.close()


Calls = list[tuple[str, bytes]]
calls = st.lists(st.tuples(st.text(max_size=6), st.binary(max_size=6)), max_size=5)


def rolled(told: Calls) -> Roll:
    roll = Roll()
    for text, inputs in told:
        roll.add(text, inputs)
    return roll


@given(calls, calls)
def test_hashes_are_equal_exactly_when_the_calls_are(first: Calls, second: Calls) -> None:
    assert (rolled(first).digest == rolled(second).digest) == (first == second)
    assert rolled(first).sequence == len(first)


def test_inputs_and_text_do_not_run_together() -> None:
    assert rolled([("ab", b"c")]).digest != rolled([("a", b"bc")]).digest
    assert rolled([("ab", b"")]).digest != rolled([("a", b""), ("b", b"")]).digest


def test_the_inputs_alone_have_a_short_digest() -> None:
    roll = Roll()
    assert roll.add("step", b"") == b""
    first, again = roll.add("step", b"one"), roll.add("other", b"one")
    assert len(first) == 8
    assert first == again
    assert roll.add("step", b"two") != first


def test_text_that_is_no_unicode_is_hashed() -> None:
    roll = Roll()
    roll.add("\udcff", b"")
    assert roll.sequence == 1
