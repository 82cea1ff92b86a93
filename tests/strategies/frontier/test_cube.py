"""Layouts on a cube of processors, beside the published shapes of 3-D parallelism."""

from __future__ import annotations

import numpy as np
import pytest

import maniple as mp
from maniple.operators.plan.weight_home import users_of
from maniple.strategies.frontier.cube import cube_splits, on_cube
from maniple.strategies.interface.placement import complete
from maniple.strategies.interface.space import Space
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.simulation.simulation import Simulation

B, N, K = range(3)
"""The factors of a linear layer."""


def pair() -> mp.Graph:
    """The worked shapes: 16 rows, 256 to 1024 and back."""
    graph = mp.Graph("pair")
    x, y = graph.input("x", (16, 256)), graph.input("y", (16,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, 1024)), 256), y))
    return graph


def test_processors_are_a_cube() -> None:
    """b n k on (i, j, l): part (b, n, k) at 4 b + 2 n + k; b k n: at 4 b + 2 k + n; b n b: rows (i, l), columns j."""
    space = Space.of(pair(), 8)
    linear, relu = space.operators[0], space.operators[1]
    first, second = on_cube(linear, (B, N, K)), on_cube(linear, (B, K, N))
    between = on_cube(relu, (0, 1, 0))
    assert first is not None
    assert second is not None
    assert between is not None
    assert linear.plan(first).processors == (0, 1, 2, 3, 4, 5, 6, 7)
    assert linear.plan(second).processors == (0, 2, 1, 3, 4, 6, 5, 7)
    # Row 2 i + l and column j, row-major: (0, 0) at i=0 j=0 l=0, (0, 1) at j=1, (1, 0) at l=1.
    assert relu.plan(between).processors == (0, 2, 1, 3, 4, 6, 5, 7)
    assert dict(relu.plan(between).degrees) == dict(zip([f.name for f in relu.factors], (4, 2), strict=True))


def test_parts_have_the_published_shapes() -> None:
    """q=2: weights gathered from [128, 256] and [512, 64] parts, input [4, 128], hidden [4, 512], result [4, 128].

    A task computes with what q processors hold together: weights of 512 x 128 and 128 x 512, rows of 8.
    """
    graph = pair()
    space = Space.of(graph, 8)
    for node, weight in ((0, (512, 128)), (2, (128, 512))):
        choice = on_cube(space.operators[node], (B, N, K))
        assert choice is not None
        tiles, processors = users_of(graph.bound(graph.nodes[node]), 1, space.operators[node].plan(choice))
        assert {tuple(shape) for shape in (tiles[:, :, 1] - tiles[:, :, 0]).tolist()} == {weight}
        # Each part is used by q processors, which hold a q-th of it each where it is spread: 1/8 of the weight.
        _, counts = np.unique(tiles.reshape(len(tiles), -1), axis=0, return_counts=True)
        assert set((counts * processors.shape[1]).tolist()) == {2}
        assert weight[0] * weight[1] // 2 == 1024 * 256 // 8 == 128 * 256 == 512 * 64
    between = on_cube(space.operators[1], (0, 1, 0))
    assert between is not None
    assert (16 // between.degrees[0], 1024 // between.degrees[1]) == (4, 512)


def test_alternating_axes_move_less_than_the_same_order_twice() -> None:
    """What has columns j at (i, j, l) is read by columns j: half of it is there, and else only where j is l."""
    graph = pair()
    space, machine = Space.of(graph, 8), mp.Machine.preset("v100x8")
    moved = []
    for second in ((B, K, N), (B, N, K)):
        axes = [(B, N, K), (0, 1, 0), second, (0, 0, 0)]
        choices = [on_cube(own, found) for own, found in zip(space.operators, axes, strict=True)]
        named = tuple(
            (name, own.plan(choice))
            for name, own, choice in zip(space.names, space.operators, choices, strict=True)
            if choice is not None
        )
        moved.append(Simulation(graph, machine, complete(Problem(graph, machine), "cube", named)).bytes)
    assert moved[0] < moved[1]


def test_plans_of_one_layout_are_one_choice() -> None:
    space = Space.of(pair(), 8)
    plans = [space.operators[0].plan(choice) for choice in cube_splits(space, 0)]
    assert len(set(plans)) == len(plans)
    assert any(plan.points == 8 and plan.degree("k") == 2 for plan in plans if "k" in dict(plan.degrees))


def test_a_frontier_on_a_cube_runs_and_no_cube_is_refused() -> None:
    graph, machine = pair(), mp.Machine.preset("p100x8")
    found = mp.search(graph, machine, strategy="pareto", objective="pareto", space=["cube"])
    for point in found:
        point.plan.validate(graph, machine)
    with pytest.raises(mp.RequestError, match=r"expected q\^3 processors, such as 8, 27 or 64, got 4"):
        mp.search(graph, mp.Machine.preset("p100x4"), strategy="pareto", objective="pareto", space=["cube"])
