"""Lists that wait for each other."""

from __future__ import annotations

import pytest

from maniple.operators.pipeline_order.lockstep import CircleError, in_lockstep
from maniple.process.error import RequestError

NEEDS = {"1F0": ["0F0"], "1F1": ["0F1"], "0B0": ["1B0"], "0B1": ["1B1"]}


def needs(item: str) -> list[str]:
    return NEEDS.get(item, [])


def test_the_table_of_the_docstring() -> None:
    lanes = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]
    rows = zip(*in_lockstep(lanes, needs), strict=True)
    assert [" ".join(item or "--" for item in row) for row in rows] == [
        "0F0 0F1 -- 0B0 -- 0B1",
        "-- 1F0 1B0 1F1 1B1 --",
    ]


def test_three_lists_in_a_circle_are_told_from_where_it_begins() -> None:
    """The first list only waits for the circle; it is not part of it."""
    lanes = [["a"], ["b", "x"], ["c", "y"], ["d", "z"]]
    wanted = {"a": ["x"], "b": ["y"], "c": ["z"], "d": ["x"]}
    with pytest.raises(CircleError) as refused:
        in_lockstep(lanes, lambda item: wanted.get(item, []), "plan")
    assert str(refused.value) == (
        "plan: cannot go on, for b waits for y, which stands after c; c waits for z, which stands after d; "
        "d waits for x, which stands after b"
    )
    assert refused.value.lanes == (1, 2, 3)


def test_what_nothing_does_is_told() -> None:
    with pytest.raises(RequestError, match="a waits for ghost, which nothing does"):
        in_lockstep([["a"]], lambda item: ["ghost"])


def test_an_item_that_waits_for_itself() -> None:
    with pytest.raises(RequestError, match=r"^order: cannot go on, for a waits for a$"):
        in_lockstep([["a"]], lambda item: ["a"])
