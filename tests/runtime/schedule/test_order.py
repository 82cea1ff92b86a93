"""Orders: the table of the docstring, agreement with dependences, and exclusive resources."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.runtime.schedule.order import order
from maniple.runtime.schedule.schedule import csr

Graph = tuple[list[int], list[tuple[tuple[int, int], ...]], list[tuple[int, int]]]

P0, P1, LINK = 0, 1, 2
LANES = {P0: "p0", P1: "p1", LINK: "0-1"}


def whole(durations: list[int], lanes: list[tuple[int, ...]]) -> list[tuple[tuple[int, int], ...]]:
    """Holds of whole rows."""
    return [tuple((lane, duration) for lane in held) for duration, held in zip(durations, lanes, strict=True)]


def drawn(durations: list[int], lanes: list[tuple[int, ...]], begin: list[int], lane: int) -> str:
    """One lane of the picture: a digit per second in which a row holds it."""
    cells = [" "] * 16
    for row, held in enumerate(lanes):
        if lane in held:
            for second in range(begin[row], begin[row] + durations[row]):
                assert cells[second] == " "
                cells[second] = str(row)
    return f"{LANES[lane]:<3} |{''.join(cells)}".rstrip()


def test_the_table_of_the_docstring() -> None:
    durations = [4, 2, 2, 1]
    lanes = [(P0,), (P1,), (LINK,), (P1,)]
    position, begin = order(durations, whole(durations, lanes), csr(4, [(0, 2), (1, 3), (2, 3)]))
    text = order.__doc__ or ""
    for lane in LANES:
        assert any(line.endswith(drawn(durations, lanes, begin, lane)) for line in text.splitlines()), lane
    assert f"start: {', '.join(f'{row} -> {at}' for row, at in enumerate(begin))}" in text
    ranked = sorted(range(4), key=lambda row: int(position[row]))
    assert f"order: {', '.join(map(str, ranked))}" in text


def test_a_collective_holds_all_its_links() -> None:
    durations = [1, 3, 1]
    _, begin = order(durations, whole(durations, [(0,), (0, 1), (1,)]), csr(3, []))
    assert begin == [0, 1, 4]


def test_a_lane_is_free_when_the_span_is_over_though_the_row_goes_on() -> None:
    _, begin = order([5, 5, 1], [((0, 2),), ((0, 2),), ((0, 1),)], csr(3, [(0, 2)]))
    assert begin == [0, 2, 5]


def test_nothing_to_order() -> None:
    position, begin = order([], [], csr(0, []))
    assert len(position) == 0
    assert begin == []


def test_equal_starts_are_ordered_by_row() -> None:
    position, begin = order([1] * 3, whole([1] * 3, [(2,), (1,), (0,)]), csr(3, []))
    assert begin == [0] * 3
    assert position.tolist() == [0, 1, 2]


@pytest.mark.parametrize("chain", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_zero_durations_still_follow_dependences(chain: list[int]) -> None:
    position, begin = order([0] * 3, whole([0] * 3, [(row,) for row in range(3)]), csr(3, list(pairwise(chain))))
    assert begin == [0] * 3
    assert sorted(range(3), key=lambda row: int(position[row])) == chain


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 12))
    durations = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    held = st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)
    holds = [tuple((lane, draw(st.integers(0, duration))) for lane in draw(held)) for duration in durations]
    names = draw(st.permutations(range(count)))
    pairs = [(i, j) for j in range(count) for i in range(j)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=20)) if pairs else []
    return durations, holds, [(names[i], names[j]) for i, j in chosen]


def naive(graph: Graph) -> list[int]:
    """Starts by looking at every row again and again: the first that became ready goes next."""
    durations, holds, pairs = graph
    begin: dict[int, int] = {}
    free = dict.fromkeys(range(4), 0)
    while len(begin) < len(durations):
        ready = []
        for row in range(len(durations)):
            before = [i for i, j in pairs if j == row]
            if row not in begin and all(i in begin for i in before):
                ready.append((max([0, *(begin[i] + durations[i] for i in before)]), row))
        at, row = min(ready)
        begin[row] = max([at, *(free[lane] for lane, _ in holds[row])])
        for lane, span in holds[row]:
            free[lane] = begin[row] + span
    return [begin[row] for row in range(len(durations))]


@given(graphs())
def test_starts_are_those_of_a_naive_simulation(graph: Graph) -> None:
    durations, holds, pairs = graph
    _, begin = order(durations, holds, csr(len(durations), pairs))
    assert begin == naive(graph)


@given(graphs())
def test_the_order_agrees_with_every_dependence_and_every_start(graph: Graph) -> None:
    durations, holds, pairs = graph
    position, begin = order(durations, holds, csr(len(durations), pairs))
    assert sorted(position.tolist()) == list(range(len(durations)))
    for before, after in pairs:
        assert position[before] < position[after]
        assert begin[before] + durations[before] <= begin[after]
    ranked = sorted(range(len(durations)), key=lambda row: int(position[row]))
    assert [begin[row] for row in ranked] == sorted(begin)


@given(graphs())
def test_no_lane_is_held_twice_at_once(graph: Graph) -> None:
    durations, holds, pairs = graph
    _, begin = order(durations, holds, csr(len(durations), pairs))
    for first in range(len(durations)):
        for second in range(first):
            for lane in dict(holds[first]).keys() & dict(holds[second]).keys():
                apart = begin[first] >= begin[second] + dict(holds[second])[lane]
                assert apart or begin[second] >= begin[first] + dict(holds[first])[lane]
