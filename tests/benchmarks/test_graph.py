from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from taskbench.graph import PATTERNS, TaskGraph, murmur3, uniform

from maniple.process.error import RequestError

# Inputs of points 0, 1, 2, ... at one step, worked out by hand from Task Bench's core library (core/core.cc).
TABLE = [
    # pattern, width, radix, step, inputs by point
    ("trivial", 4, 5, 1, [(), (), (), ()]),
    ("no_comm", 4, 5, 1, [(0,), (1,), (2,), (3,)]),
    ("stencil_1d", 4, 5, 1, [(0, 1), (0, 1, 2), (1, 2, 3), (2, 3)]),
    ("stencil_1d_periodic", 4, 5, 1, [(0, 1, 3), (0, 1, 2), (1, 2, 3), (2, 3, 0)]),
    ("stencil_1d_periodic", 2, 5, 1, [(0, 1), (0, 1)]),
    ("dom", 4, 5, 1, [(0,), (0,)]),  # the wave widens: two points read the one before
    ("dom", 4, 5, 3, [(0,), (0, 1), (1, 2), (2,)]),
    ("tree", 4, 5, 2, [(0,), (0,), (1,), (1,)]),
    ("tree", 8, 5, 2, [(0,), (0,), (1,), (1,)]),
    ("fft", 8, 5, 1, [(0, 1), (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 5), (4, 5, 6), (5, 6, 7), (6, 7)]),
    ("fft", 8, 5, 2, [(0, 2), (1, 3), (0, 2, 4), (1, 3, 5), (2, 4, 6), (3, 5, 7), (4, 6), (5, 7)]),
    ("fft", 8, 5, 3, [(0, 4), (1, 5), (2, 6), (3, 7), (0, 4), (1, 5), (2, 6), (3, 7)]),
    ("fft", 8, 5, 4, [(0, 1), (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 5), (4, 5, 6), (5, 6, 7), (6, 7)]),
    ("all_to_all", 3, 5, 1, [(0, 1, 2), (0, 1, 2), (0, 1, 2)]),
    ("nearest", 5, 3, 1, [(0, 1), (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4)]),
    ("nearest", 5, 4, 1, [(0, 1), (0, 1, 2), (0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4)]),
    ("spread", 6, 2, 3, [(0, 3), (1, 4), (2, 5), (3, 0), (4, 1), (5, 2)]),  # period 3, phase 0
    ("spread", 6, 2, 1, [(0, 4), (1, 5), (2, 0), (3, 1), (4, 2), (5, 3)]),
    ("spread", 4, 5, 1, [(0, 1, 2, 3), (1, 2, 3, 0), (2, 3, 0, 1), (3, 0, 1, 2)]),  # radix cut down to 4
]
SIZES = st.tuples(st.sampled_from(PATTERNS), st.integers(1, 9), st.integers(1, 12), st.integers(1, 6))


@pytest.mark.parametrize(("pattern", "width", "radix", "step", "expected"), TABLE)
def test_points_read_what_task_bench_says(
    pattern: str, width: int, radix: int, step: int, expected: list[tuple[int, ...]]
) -> None:
    graph = TaskGraph(pattern, width, steps=12, radix=radix)
    assert [graph.inputs(step, point) for point in range(*graph.points(step))] == expected


@given(SIZES)
def test_tasks_read_tasks_of_the_step_before_and_each_once(size: tuple[str, int, int, int]) -> None:
    graph = TaskGraph(*size)
    tasks = set(graph.tasks())
    for step, point in tasks:
        inputs = graph.inputs(step, point)
        assert len(set(inputs)) == len(inputs)
        assert {(step - 1, source) for source in inputs} <= tasks


@given(SIZES)
def test_every_task_but_the_sinks_is_read(size: tuple[str, int, int, int]) -> None:
    graph = TaskGraph(*size)
    read = {(step - 1, source) for step, point in graph.tasks() for source in graph.inputs(step, point)}
    assert read.isdisjoint(graph.sinks)
    assert read | set(graph.sinks) == set(graph.tasks())


def test_the_dom_pattern_sweeps_through_a_diamond() -> None:
    graph = TaskGraph("dom", width=3, steps=6)
    assert [graph.points(step) for step in range(6)] == [(0, 1), (0, 2), (0, 3), (0, 3), (1, 3), (2, 3)]


def test_the_tree_pattern_doubles() -> None:
    graph = TaskGraph("tree", width=6, steps=5)
    assert [graph.points(step) for step in range(5)] == [(0, 1), (0, 2), (0, 4), (0, 6), (0, 6)]


def test_random_nearest_repeats_after_its_period_and_keeps_itself() -> None:
    graph = TaskGraph("random_nearest", width=32, steps=8, radix=5)
    rows = [[graph.inputs(step, point) for point in range(32)] for step in range(1, 8)]
    assert rows[0] == rows[3] == rows[6]
    assert rows[0] != rows[1]
    assert all(point in inputs for row in rows for point, inputs in enumerate(row))
    assert all(abs(source - point) <= 2 for row in rows for point, inputs in enumerate(row) for source in inputs)


def test_the_hash_is_murmur3() -> None:
    """The first word pair is the published digest of `hello`."""
    assert murmur3(b"hello", 0) == (0xCBD8A7B341BD9B02, 0x5B1E906A48AE1D19)
    assert murmur3(b"", 0) == (0, 0)
    drawn = [uniform(0, step, point) for step in range(40) for point in range(40)]
    assert 0 <= min(drawn) < 0.01 < 0.99 < max(drawn) < 1
    assert abs(sum(drawn) / len(drawn) - 0.5) < 0.02


def test_imbalance_changes_each_task_and_not_the_mean() -> None:
    graph = TaskGraph("stencil_1d", width=8, steps=64, imbalance=1.0)
    counts = [graph.iterations(*task, 1000) for task in graph.tasks()]
    assert 500 <= min(counts) < 550 < 1450 < max(counts) <= 1500
    assert graph.flops(1000) == sum(128 * count + 64 for count in counts)
    assert TaskGraph("stencil_1d", 8, 64).flops(1000) == 8 * 64 * (128 * 1000 + 64)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"pattern": "stencil_2d"}, "stencil_1d"),
        ({"pattern": "fft", "width": 0}, "--width"),
        ({"pattern": "fft", "steps": 0}, "--steps"),
        ({"pattern": "fft", "payload": 24}, "multiple of 16"),
        ({"pattern": "fft", "imbalance": 2.5}, "0 to 2"),
    ],
)
def test_a_graph_that_is_none_is_refused(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        TaskGraph(**arguments)  # type: ignore[arg-type]
