"""Steady states against the mean of the worst circuit, and the table of the docstring."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple.process.error import RunError
from maniple.runtime.schedule.schedule import csr
from maniple.strategies.timing.steady_state import Overlap, SteadyState, steady_state

pytestmark = pytest.mark.simulator

Pairs = list[tuple[int, int]]


def timed(durations: list[int], within: Pairs, carried: Pairs, lags: list[int], lanes: list[int]) -> SteadyState:
    """Rows that each hold one lane, their processor."""
    count = len(durations)
    held = np.arange(count + 1), np.asarray(lanes), np.asarray(durations)
    columns = np.asarray(durations), held, csr(count, within), 1 + max(lanes)
    own = {lane: np.flatnonzero(np.asarray(lanes) == lane) for lane in set(lanes)}
    return steady_state(Overlap(columns, np.asarray(carried).reshape(-1, 2), np.asarray(lags), own))


def circuits(count: int, within: Pairs, carried: Pairs) -> Iterator[tuple[list[int], int]]:
    """Every simple circuit: its rows, and how many runs it takes."""
    waits: dict[int, list[tuple[int, int]]] = {}
    for pairs, runs in ((within, 0), (carried, 1)):
        for before, after in pairs:
            waits.setdefault(before, []).append((after, runs))

    def walk(path: list[int], runs: int) -> Iterator[tuple[list[int], int]]:
        for after, more in waits.get(path[-1], []):
            if after == path[0]:
                yield path, runs + more
            elif after > path[0] and after not in path:
                yield from walk([*path, after], runs + more)

    for first in range(count):
        yield from walk([first], 0)


def test_the_table_of_the_docstring() -> None:
    """Rows: F0, F1, B1, B0; backward of stage 0 is of the mini-batch before, and reads what stage 1 then wrote."""
    found = timed([1, 1, 1, 1], [(0, 1), (1, 2), (0, 3)], [(2, 3)], [0, 0, 0, 1], [0, 1, 1, 0])
    assert (found.period_ns, found.ramp_ns, found.cycle, found.exact) == (2, 4, 1, True)
    assert found.begin[:4].tolist() == [[0, 1, 2, 1], [1, 3, 4, 3], [4, 5, 6, 5], [6, 7, 8, 7]]


def test_a_row_waits_for_its_own_run_before_and_a_lane_for_all_of_its_own() -> None:
    """The second row is ready at once in each run, and still comes after the first of the run before."""
    found = timed([3, 2], [], [], [0, 0], [0, 0])
    assert (found.period_ns, found.begin[1].tolist()) == (5, [5, 8])


def test_a_circle_within_a_run_is_said() -> None:
    with pytest.raises(RunError, match="form a circle"):
        timed([1, 1], [(0, 1), (1, 0)], [], [0, 0], [0, 1])


@given(st.data())
def test_the_period_is_that_of_the_worst_circuit(data: st.DataObject) -> None:
    """Each row on a processor of its own: a circuit of so many runs takes the durations of its rows."""
    count = data.draw(st.integers(2, 6))
    durations = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    row = st.integers(0, count - 1)
    within = [(a, b) for a, b in data.draw(st.lists(st.tuples(row, row), max_size=8)) if a < b]
    carried = data.draw(st.lists(st.tuples(row, row), max_size=6))
    ring = [(number, (number + 1) % count) for number in range(count)]  # so that all go at one pace
    every = [*carried, *ring, *((number, number) for number in range(count))]
    found = timed(durations, within, every, [0] * count, list(range(count)))
    worst = max(sum(durations[one] for one in path) / runs for path, runs in circuits(count, within, every))
    if found.exact:
        assert found.period_ns == -(-round(worst * found.cycle) // found.cycle)
    else:
        assert abs(found.period_ns - worst) <= 1 + sum(durations) / found.cycle
