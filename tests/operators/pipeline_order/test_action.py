"""Actions are read and written as torch writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining.schedules import _Action

from maniple.operators.pipeline_order.action import KINDS, Action, Kind
from maniple.process.error import RequestError


@given(st.integers(0, 99), st.sampled_from(KINDS), st.integers(0, 99))
def test_a_text_gives_its_action_back(stage: int, kind: Kind, part: int) -> None:
    action = Action(stage, kind, part)
    assert Action.parse(str(action)) == action == Action.parse(f"  {action} ")
    if kind != "R":  # torch has no kind for it
        theirs = _Action.from_str(str(action))
        assert theirs is not None
        assert (theirs.stage_index, theirs.computation_type.value, theirs.microbatch_index) == action
        assert str(theirs) == str(action)


@pytest.mark.parametrize("text", ["", "F0", "2F", "2-F0", "2F0x", "F", "2 F0", "-1F0"])
def test_what_is_no_action_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"^file, line 3: expected an action such as 2F0 .* got '"):
        Action.parse(text, "file, line 3")


@pytest.mark.parametrize("text", ["2X0", "2SEND_F0", "1f0", "0FF1"])
def test_an_unknown_kind_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(
        RequestError, match=rf"^order: '{text}' is of the unknown kind .*choices: F forward, B backward"
    ):
        Action.parse(text)
