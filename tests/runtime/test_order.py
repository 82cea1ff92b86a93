"""Orders: the table of the docstring, agreement with dependences, and exclusive resources."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.runtime.order import order
from maniple.runtime.schedule import csr

Graph = tuple[list[float], list[tuple[int, ...]], list[tuple[int, int]]]

P0, P1, LINK = 0, 1, 2
LANES = {P0: "p0", P1: "p1", LINK: "0-1"}


def drawn(durations: list[float], resources: list[tuple[int, ...]], begin: list[float], lane: int) -> str:
    """One lane of the picture: a digit per second in which a row holds the resource."""
    cells = [" "] * 16
    for row, held in enumerate(resources):
        if lane in held:
            for second in range(int(begin[row]), int(begin[row] + durations[row])):
                assert cells[second] == " "
                cells[second] = str(row)
    return f"{LANES[lane]:<3} |{''.join(cells)}".rstrip()


def test_the_table_of_the_docstring() -> None:
    durations = [4.0, 2.0, 2.0, 1.0]
    resources = [(P0,), (P1,), (LINK,), (P1,)]
    position, begin = order(durations, resources, csr(4, [(0, 2), (1, 3), (2, 3)]))
    text = order.__doc__ or ""
    for lane in LANES:
        assert any(line.endswith(drawn(durations, resources, begin, lane)) for line in text.splitlines()), lane
    assert f"start: {', '.join(f'{row} -> {int(at)}' for row, at in enumerate(begin))}" in text
    ranked = sorted(range(4), key=lambda row: int(position[row]))
    assert f"order: {', '.join(map(str, ranked))}" in text


def test_a_collective_holds_all_its_links() -> None:
    _, begin = order([1.0, 3.0, 1.0], [(0,), (0, 1), (1,)], csr(3, []))
    assert begin == [0.0, 1.0, 4.0]


def test_nothing_to_order() -> None:
    position, begin = order([], [], csr(0, []))
    assert len(position) == 0
    assert begin == []


def test_equal_starts_are_ordered_by_row() -> None:
    position, begin = order([1.0] * 3, [(2,), (1,), (0,)], csr(3, []))
    assert begin == [0.0] * 3
    assert position.tolist() == [0, 1, 2]


@pytest.mark.parametrize("chain", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_zero_durations_still_follow_dependences(chain: list[int]) -> None:
    position, begin = order([0.0] * 3, [(row,) for row in range(3)], csr(3, list(pairwise(chain))))
    assert begin == [0.0] * 3
    assert sorted(range(3), key=lambda row: int(position[row])) == chain


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 12))
    durations = draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.5]), min_size=count, max_size=count))
    held = st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True).map(tuple)
    resources = draw(st.lists(held, min_size=count, max_size=count))
    names = draw(st.permutations(range(count)))
    pairs = [(i, j) for j in range(count) for i in range(j)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=20)) if pairs else []
    return durations, resources, [(names[i], names[j]) for i, j in chosen]


def naive(graph: Graph) -> list[float]:
    """Starts by looking at every row again and again: the first that became ready goes next."""
    durations, resources, pairs = graph
    begin: dict[int, float] = {}
    free = dict.fromkeys(range(4), 0.0)
    while len(begin) < len(durations):
        ready = []
        for row in range(len(durations)):
            before = [i for i, j in pairs if j == row]
            if row not in begin and all(i in begin for i in before):
                ready.append((max([0.0, *(begin[i] + durations[i] for i in before)]), row))
        at, row = min(ready)
        begin[row] = max([at, *(free[resource] for resource in resources[row])])
        for resource in resources[row]:
            free[resource] = begin[row] + durations[row]
    return [begin[row] for row in range(len(durations))]


@given(graphs())
def test_starts_are_those_of_a_naive_simulation(graph: Graph) -> None:
    durations, resources, pairs = graph
    _, begin = order(durations, resources, csr(len(durations), pairs))
    assert begin == naive(graph)


@given(graphs())
def test_the_order_agrees_with_every_dependence_and_every_start(graph: Graph) -> None:
    durations, resources, pairs = graph
    position, begin = order(durations, resources, csr(len(durations), pairs))
    assert sorted(position.tolist()) == list(range(len(durations)))
    for before, after in pairs:
        assert position[before] < position[after]
        assert begin[before] + durations[before] <= begin[after]
    ranked = sorted(range(len(durations)), key=lambda row: int(position[row]))
    assert [begin[row] for row in ranked] == sorted(begin)


@given(graphs())
def test_no_resource_runs_two_rows_at_once(graph: Graph) -> None:
    durations, resources, pairs = graph
    _, begin = order(durations, resources, csr(len(durations), pairs))
    for first in range(len(durations)):
        for second in range(first):
            if set(resources[first]) & set(resources[second]):
                apart = begin[first] >= begin[second] + durations[second]
                assert apart or begin[second] >= begin[first] + durations[first]
