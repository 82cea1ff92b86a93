"""The critical path, by its table and by what must hold of any path."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from maniple.runtime.observe.critical_path import critical_path
from maniple.runtime.observe.timeline import Event, Item, Kind, Span


def span(row: int, lane: str, start: int, end: int, rank: int = 0) -> Span:
    return Span(Event(Kind.STARTED, start, rank, lane, f"row {row}", "task", 1, row), end)


def test_it_follows_what_ended_last_among_dependences_and_the_lane() -> None:
    #      0   1   2   3   4   5   6
    # p0   row 0....   row 2........
    # p1   row 1   row 3       row 4      row 4 waits for row 3, and for row 2's lane-mate nothing
    spans = [span(0, "p0", 0, 2), span(1, "p1", 0, 1), span(3, "p1", 2, 3), span(2, "p0", 3, 5), span(4, "p1", 5, 6)]
    dependences = [((1, 0), (1, 3)), ((1, 3), (1, 2)), ((1, 2), (1, 4))]
    assert [found.item[1] for found in critical_path(spans, dependences)] == [0, 3, 2, 4]
    assert [found.item[1] for found in critical_path(spans, [])] == [1, 3, 4]


def test_a_clock_that_is_a_little_off_does_not_break_it() -> None:
    spans = [span(0, "p0", 0, 10), span(1, "p1", 9, 12, rank=1)]  # seems to start before what it waited for ended
    assert [found.item[1] for found in critical_path(spans, [((1, 0), (1, 1))])] == [0, 1]


def test_nothing_has_no_path() -> None:
    assert critical_path([], []) == ()


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[Span], list[tuple[Item, Item]]]:
    """Rows on lanes, each started as soon as its lane was free and what it waits for had ended."""
    free: dict[str, int] = {}
    ends: list[int] = []
    spans, dependences = [], []
    for row in range(draw(st.integers(1, 12))):
        lane = draw(st.sampled_from(["p0", "p1", "p2"]))
        before = draw(st.sets(st.integers(0, row - 1), max_size=3)) if row else set()
        start = max([free.get(lane, 0), *(ends[other] for other in before)])
        ends.append(start + draw(st.integers(1, 5)))
        free[lane] = ends[row]
        spans.append(span(row, lane, start, ends[row]))
        dependences += [((1, other), (1, row)) for other in sorted(before)]
    return sorted(spans, key=lambda found: (found.start_ns, found.item)), dependences


@given(schedules())
def test_the_path_of_a_schedule_without_idle_choice_has_no_gap(
    case: tuple[list[Span], list[tuple[Item, Item]]],
) -> None:
    """Where a row starts the moment that it can, the spans of the path add up to the whole time."""
    spans, dependences = case
    path = critical_path(spans, dependences)
    assert path[-1].end_ns == max(found.end_ns for found in spans)
    assert sum(found.end_ns - found.start_ns for found in path) == path[-1].end_ns
    assert all(first.end_ns == then.start_ns for first, then in pairwise(path))
