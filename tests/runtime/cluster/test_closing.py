"""The closing of a run: the table of its docstring."""

from __future__ import annotations

import pytest

from maniple.runtime.cluster.closing import LAST_WORDS_S, STACKS_S, TERMINATION_S, Closing, Step

# When each step comes.
FAULT = {
    Step.TELL: 0.0,
    Step.STACKS: LAST_WORDS_S,
    Step.TERMINATE: LAST_WORDS_S + STACKS_S,
    Step.KILL: LAST_WORDS_S + STACKS_S + TERMINATION_S,
}
STUCK = {
    Step.STACKS: 0.0,
    Step.KILL_SILENT: STACKS_S,
    Step.TELL: STACKS_S,
    Step.TERMINATE: STACKS_S + LAST_WORDS_S,
    Step.KILL: STACKS_S + LAST_WORDS_S + TERMINATION_S,
}
INTERRUPTED = {
    Step.TELL: 0.0,
    Step.STACKS: 0.0,
    Step.TERMINATE: STACKS_S,
    Step.KILL: STACKS_S + TERMINATION_S,
}


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (Closing(10.0), FAULT),
        (Closing(10.0, stuck=True), STUCK),
        (Closing(10.0, interrupted=True), INTERRUPTED),
    ],
)
def test_steps_come_in_their_order_and_once(made: Closing, expected: dict[Step, float]) -> None:
    found = {step: tick / 8 for tick in range(80) for step in made.due(10.0 + tick / 8)}
    assert found == expected
    assert list(found) == list(expected)
    stacks = next(place for place, step in enumerate(found) if step is Step.STACKS)
    assert all(step not in list(found)[:stacks] for step in (Step.KILL_SILENT, Step.TERMINATE, Step.KILL))


def test_a_hurry_leaves_nothing() -> None:
    closing = Closing(0.0)
    closing.hurry()
    assert closing.due(100.0) == []
