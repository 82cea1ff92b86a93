"""Decompositions: the terms add up to the step, by every nanosecond."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.process.error import RequestError
from maniple.runtime.observe.decomposition import Terms, decompose, whole_step
from maniple.runtime.observe.timeline import Event, Kind, Timeline

Drawn = tuple[int, str, str, int, int, int]
"""Rank, lane, category, row, start, end."""


def events(spans: list[Drawn]) -> Iterator[Event]:
    for rank, lane, category, row, start, end in spans:
        yield Event(Kind.STARTED, start, rank, lane, f"{category} {row}", category, 1, row)
        yield Event(Kind.ENDED if lane != "copy engine" else Kind.COPIED, end, rank, lane, category, category, 1, row)


def timeline(spans: list[Drawn], wholes: dict[int, tuple[int, int, int]]) -> Timeline:
    ends = [event for rank, times in wholes.items() for event in whole_step(rank, 1, *times)]
    found = sorted([*ends, *events(spans)], key=lambda event: event.time_ns)
    return Timeline(tuple(found), (0,) * len(wholes))


def nanoseconds(terms: Terms) -> tuple[int, ...]:
    return tuple(round(1e9 * term) for term in astuple(terms))


def test_the_table_of_the_docstring() -> None:
    """Times in tens: p0 sends nothing and waits; p1 sends to it."""
    spans: list[Drawn] = [
        (0, "p0", "task", 0, 10, 20),
        (0, "p0", "task", 2, 40, 50),
        (0, "copy engine", "copy", 3, 20, 40),
        (1, "p1", "task", 1, 10, 30),
        (1, "copy engine", "copy", 3, 30, 39),
    ]
    found = timeline(spans, {0: (0, 10, 60), 1: (0, 10, 39)})
    assert nanoseconds(decompose(found, 0)) == (20, 0, 10, 20, 10)
    assert nanoseconds(decompose(found, 1)) == (20, 0, 9, 0, 10)


def test_a_collective_is_under_way_once_all_have_begun() -> None:
    spans: list[Drawn] = [(0, "copy engine", "all_reduce", 5, 0, 30), (1, "copy engine", "all_reduce", 5, 12, 30)]
    found = timeline(spans, {0: (0, 0, 30), 1: (0, 0, 30)})
    assert nanoseconds(decompose(found, 0)) == (0, 0, 18, 12, 0)
    assert nanoseconds(decompose(found, 1)) == (0, 0, 18, 12, 0)


def test_a_step_that_began_before_the_last_one_ended_leaves_the_program_nothing() -> None:
    found = timeline([(0, "p0", "task", 0, 5, 30)], {0: (10, 4, 30)})
    assert nanoseconds(decompose(found, 0)) == (20, 0, 0, 0, 0)


def test_lanes_are_averaged() -> None:
    found = timeline([(0, "p0", "task", 0, 0, 30), (0, "p1", "fold", 1, 0, 10)], {0: (0, 0, 30)})
    assert nanoseconds(decompose(found, 0)) == (15, 5, 0, 10, 0)


def test_a_rank_without_a_step_is_refused() -> None:
    with pytest.raises(RequestError, match="no whole step of rank 1"):
        decompose(timeline([], {0: (0, 0, 9)}), 1)


@st.composite
def drawn(draw: st.DrawFn) -> tuple[list[Drawn], tuple[int, int, int]]:
    """Rows of two lanes and of the copy engine of rank 0, and its step."""
    spans: list[Drawn] = []
    for row in range(draw(st.integers(0, 8))):
        start = draw(st.integers(0, 40))
        lane = draw(st.sampled_from(["p0", "p1", "copy engine"]))
        category = draw(st.sampled_from(["task", "fold"])) if lane != "copy engine" else "broadcast"
        spans.append((0, lane, category, row, start, start + draw(st.integers(1, 20))))
    before, begun = draw(st.integers(0, 20)), draw(st.integers(0, 30))
    return spans, (before, begun, max(before, begun) + draw(st.integers(1, 30)))


@given(drawn())
def test_every_nanosecond_counts_once(given_: tuple[list[Drawn], tuple[int, int, int]]) -> None:
    spans, (before, begun, ended) = given_
    terms = decompose(timeline(spans, {0: (before, begun, ended)}), 0)
    lanes = sorted({lane for _, lane, _, _, _, _ in spans if lane != "copy engine"}) or ["p0"]
    wanted = [0, 0, 0, 0, 0]
    for lane in lanes:
        for now in range(before, ended):
            live = [(where, what) for _, where, what, _, start, end in spans if start <= now < end]
            order = [(lane, "task") in live, (lane, "fold") in live, ("copy engine", "broadcast") in live, now >= begun]
            wanted[[*order, True].index(True)] += 1
    assert [term * len(lanes) * 1e9 for term in astuple(terms)] == pytest.approx(wanted, abs=1e-6)
    assert terms.step_s * 1e9 == pytest.approx(ended - before, abs=1e-6)
