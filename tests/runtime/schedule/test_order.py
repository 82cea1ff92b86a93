"""Orders: the table of the docstring, a naive simulation as the oracle, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive_order import Rows
from naive_order import first_come as naive

from maniple.process.error import RequestError, RunError
from maniple.runtime.schedule.order import FEW, first_come, order
from maniple.runtime.schedule.schedule import csr

Holds = list[tuple[tuple[int, int], ...]]
Pairs = list[tuple[int, int]]
Graph = tuple[list[int], Holds, Pairs]

P0, P1, LINK = 0, 1, 2
LANES = {P0: "p0", P1: "p1", LINK: "0-1"}


def columns(graph: Graph) -> tuple[np.ndarray, tuple[np.ndarray, ...], tuple[np.ndarray, ...], int]:
    """The arguments of `order`, and of `first_come`."""
    durations, holds, pairs = graph
    held = np.asarray([hold for each in holds for hold in each], dtype=np.int64).reshape(-1, 2)
    starts = np.cumsum([0, *map(len, holds)], dtype=np.int64)
    lanes = int(held[:, 0].max(initial=-1)) + 1
    table = starts, held[:, 0].copy(), held[:, 1].copy()
    return np.asarray(durations, dtype=np.int64), table, csr(len(durations), pairs), lanes


def ordered(graph: Graph) -> tuple[list[int], list[int]]:
    position, begin = order(*columns(graph))
    return position.tolist(), begin.tolist()


def rows(graph: Graph) -> Rows:
    """The same for the naive simulation."""
    return dict(enumerate(zip(graph[0], graph[1], strict=True)))


def whole(durations: list[int], lanes: list[tuple[int, ...]]) -> Holds:
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
    position, begin = ordered((durations, whole(durations, lanes), [(0, 2), (1, 3), (2, 3)]))
    text = order.__doc__ or ""
    for lane in LANES:
        assert any(line.endswith(drawn(durations, lanes, begin, lane)) for line in text.splitlines()), lane
    assert f"start: {', '.join(f'{row} -> {at}' for row, at in enumerate(begin))}" in text
    assert f"order: {', '.join(map(str, sorted(range(4), key=position.__getitem__)))}" in text


def test_a_collective_holds_all_its_links() -> None:
    durations = [1, 3, 1]
    assert ordered((durations, whole(durations, [(0,), (0, 1), (1,)]), []))[1] == [0, 1, 4]


def test_a_lane_is_free_when_the_span_is_over_though_the_row_goes_on() -> None:
    assert ordered(([5, 5, 1], [((0, 2),), ((0, 2),), ((0, 1),)], [(0, 2)]))[1] == [0, 2, 5]


def test_nothing_to_order() -> None:
    assert ordered(([], [], [])) == ([], [])


def test_equal_starts_are_ordered_by_row() -> None:
    assert ordered(([1] * 3, whole([1] * 3, [(2,), (1,), (0,)]), [])) == ([0, 1, 2], [0] * 3)


@pytest.mark.parametrize("chain", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_zero_durations_still_follow_dependences(chain: list[int]) -> None:
    position, begin = ordered(([0] * 3, whole([0] * 3, [(row,) for row in range(3)]), list(pairwise(chain))))
    assert begin == [0] * 3
    assert sorted(range(3), key=position.__getitem__) == chain


def test_rows_that_wait_for_each_other_are_refused() -> None:
    durations = [1] * 4
    with pytest.raises(RunError, match="form a circle"):
        ordered((durations, whole(durations, [(0,)] * 4), [(0, 1), (1, 2), (2, 1), (2, 3)]))


@pytest.mark.parametrize("duration", [-1, 1 << 60, (1 << 62) // 3 + 1000])
def test_times_that_do_not_fit_are_refused(duration: int) -> None:
    """What takes more than 63 bits comes out negative; what takes less may still add up to more."""
    durations = [duration] * 3
    with pytest.raises(RequestError, match="look at the machine's rates"):
        ordered((durations, [()] * 3, [(0, 1)]))


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


def large(seed: int) -> Graph:
    """More rows that are ready at once than find their places one by one, most of them with others of their time."""
    chance = Random(seed)
    count, unit = 32 * FEW, chance.choice([1, 1 << 32])
    durations = [unit * chance.choice([0, 1, 1, 2, 7]) for _ in range(count)]
    holds = [tuple((lane, duration // 2) for lane in chance.sample(range(5), 2)) for duration in durations]
    names = chance.sample(range(count), count)
    return durations, holds, [(names[row // 9], names[row]) for row in range(9, count)]


def assert_as_naive(graph: Graph) -> None:
    durations, _, pairs = graph
    times = naive(rows(graph), pairs)
    begin, sequence, makespan = first_come(*columns(graph))
    assert sequence.tolist() == list(times)
    assert {row: at + durations[row] for row, at in enumerate(begin.tolist())} == {
        row: end for row, (_, end) in times.items()
    }
    assert makespan == max(end for _, end in times.values())


@given(graphs())
def test_rows_run_as_in_a_naive_simulation(graph: Graph) -> None:
    assert_as_naive(graph)


@pytest.mark.parametrize("seed", range(8))
def test_many_rows_run_as_in_a_naive_simulation(seed: int) -> None:
    assert_as_naive(large(seed))


@given(graphs())
def test_the_order_agrees_with_every_dependence_and_every_start(graph: Graph) -> None:
    durations, _, pairs = graph
    position, begin = ordered(graph)
    assert begin == first_come(*columns(graph))[0].tolist()
    assert sorted(position) == list(range(len(durations)))
    for before, after in pairs:
        assert position[before] < position[after]
        assert begin[before] + durations[before] <= begin[after]
    ranked = sorted(range(len(durations)), key=position.__getitem__)
    assert [begin[row] for row in ranked] == sorted(begin)


@given(graphs())
def test_no_lane_is_held_twice_at_once(graph: Graph) -> None:
    durations, holds, _ = graph
    _, begin = ordered(graph)
    for first in range(len(durations)):
        for second in range(first):
            for lane in dict(holds[first]).keys() & dict(holds[second]).keys():
                apart = begin[first] >= begin[second] + dict(holds[second])[lane]
                assert apart or begin[second] >= begin[first] + dict(holds[first])[lane]
