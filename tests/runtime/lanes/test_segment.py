"""Segments: where a lane is cut, what is captured when, and what is left out of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from maniple.runtime.devices.device import Captured, Refused
from maniple.runtime.lanes.segment import BoundStep, Segment, cut_lane

RAN: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


def wait(where: int, value: int) -> object:
    raise AssertionError


def step(name: str, *, waits: bool = False, behind: bool = False, told: int = 0, eager: str = "") -> BoundStep:
    """A step that notes its name; `start ...` starts a movement."""
    call = None if name.startswith("start") else lambda: RAN.append(name)
    waited = ((wait, 0, 0, 1),) if waits else ()
    return BoundStep(len(name), call, eager, waited, ((7, 1),) if behind else (), told)


def capture(parts: Sequence[Callable[[], object]]) -> Captured | Refused:
    """Captures whatever it is given."""
    for part in parts:
        part()
    count = len(parts)
    return lambda: RAN.append(f"graph of {count}")


def test_a_lane_is_cut_where_something_outside_waits_or_is_waited_for() -> None:
    """The table of the module."""
    lane = [
        step("input", eager="every run takes another tensor"),
        step("a"),
        step("b", told=3),
        step("start of a copy"),
        step("c", waits=True),
        step("d"),
        step("fetch", told=7, eager="every run gives another tensor"),
    ]
    cut = cut_lane(lane, capture)
    kinds = [len(part.rows) if isinstance(part, Segment) else "start" for part in cut]
    assert kinds == [3, "start", 3]
    pieces = [[(len(p.steps), bool(p.eager)) for p in part.pieces] for part in cut if isinstance(part, Segment)]
    assert pieces == [[(1, True), (2, False)], [(2, False), (1, True)]]
    assert [part.told for part in cut] == [3, 0, 7]


def test_an_event_of_another_device_begins_a_segment_too() -> None:
    cut = cut_lane([step("a"), step("b", behind=True), step("c", told=3)], capture)
    assert [len(part.rows) for part in cut if isinstance(part, Segment)] == [1, 2]


def test_a_step_that_others_wait_for_ends_a_segment_whatever_follows() -> None:
    """Else they would wait for what follows too, which may wait for them."""
    cut = cut_lane([step("a", told=1), step("b"), step("c", told=3), step("d", told=4)], capture)
    assert [(len(part.rows), part.told) for part in cut if isinstance(part, Segment)] == [(1, 1), (2, 3), (1, 4)]


def test_steps_run_once_and_are_captured_as_they_run_for_the_second_time() -> None:
    (segment,) = cut_lane([step("a"), step("b"), step("c", told=3)], capture)
    assert isinstance(segment, Segment)
    for expected in (["a", "b", "c"], ["a", "b", "c"], ["graph of 3"], ["graph of 3"]):
        RAN.clear()
        segment()
        assert expected == RAN


def test_what_is_refused_is_left_out_and_the_rest_captured_later() -> None:
    """The second table of the module."""

    def picky(parts: Sequence[Callable[[], object]]) -> Captured | Refused:
        before = len(RAN)
        captured = capture(parts)
        place = next((at for at, name in enumerate(RAN[before:]) if name == "b"), None)
        return captured if place is None else Refused(place, "b has to wait")

    (segment,) = cut_lane([step("a"), step("b"), step("c", told=3)], picky)
    assert isinstance(segment, Segment)
    whole = ["a", "b", "c"]
    for expected in (whole, whole, whole, ["graph of 1", "b", "graph of 1"]):
        RAN.clear()
        segment()
        assert expected == RAN
    assert [piece.eager for piece in segment.pieces] == ["", "b has to wait", ""]


def test_a_device_that_captures_nothing_is_asked_once() -> None:
    asked: list[int] = []

    def never(parts: Sequence[Callable[[], object]]) -> Refused:
        asked.append(len(parts))
        for part in parts:
            part()
        return Refused(-1, "it captures nothing")

    (segment,) = cut_lane([step("a"), step("b", told=2)], never)
    assert isinstance(segment, Segment)
    for _ in range(4):
        segment()
    assert asked == [2]
    assert RAN == ["a", "b"] * 4


def test_a_failure_belongs_to_the_step_whose_body_raised_it() -> None:
    broken = ValueError("no good")

    def fail() -> None:
        raise broken

    steps = [BoundStep(row, call, "", (), (), 0) for row, call in enumerate([lambda: None, fail, lambda: None])]
    (segment,) = cut_lane(steps, capture)
    assert isinstance(segment, Segment)
    with pytest.raises(ValueError, match="no good"):
        segment()
    assert (segment.row_of(broken), *map(list, map(segment.begun, (broken, None)))) == (1, [0, 1], [0, 1, 2])
    named = RuntimeError("the device failed")
    named.__cause__ = broken  # as a stream tells of it
    assert (segment.row_of(named), list(segment.begun(named))) == (1, [0, 1])
    elsewhere = RuntimeError("of a kernel")
    assert (segment.row_of(elsewhere), list(segment.begun(elsewhere))) == (0, [0])
