"""Homes of all choices at once, and tiles of all splits at once: those of each by itself."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import maniple as mp
from maniple.operators.lowering.launch_form import tile_flops
from maniple.operators.plan.weight_home import home_among, planned_home
from maniple.operators.rules.tile import split_range
from maniple.strategies.frontier.homes import plan_where_used
from maniple.strategies.optcnn.home_table import HOMES, HOMES_IN_PARTS, NO_TURN, HomeTable, home_tables, tiles_of
from maniple.strategies.optcnn.split_table import SplitTable

PROFILE = settings(derandomize=True, deadline=None, max_examples=60)


@st.composite
def uses(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[np.ndarray, np.ndarray]]]:
    """A weight, and under some choices its tiles and who uses each: a grid, perhaps read several times."""
    shape = tuple(draw(st.lists(st.integers(1, 6) | st.integers(7, 17), max_size=3)))
    chance = Random(draw(st.integers(0, 2**32 - 1)))
    choices = []
    for _ in range(draw(st.integers(1, 4))):
        degrees = [chance.randint(1, min(3, extent)) for extent in shape]
        grid = list(product(*map(split_range, shape, degrees)))
        tiles = [tile for tile in grid for _ in range(chance.choice([1, 1, 2]))]
        if chance.random() < 0.1:
            tiles = []
        replicas = chance.choice([1, 1, 2])
        bounds = np.asarray(tiles, dtype=np.int64).reshape(len(tiles), len(shape), 2)
        users = np.asarray([chance.sample(range(6), replicas) for _ in tiles], dtype=np.int64)
        if chance.random() < 0.5:  # each processor uses one tile
            users = np.arange(len(tiles) * replicas).reshape(len(tiles), replicas) % 12
        choices.append((bounds, users.reshape(len(tiles), replicas)))
    return shape, choices


@PROFILE
@given(uses(), st.sampled_from([NO_TURN, 0, 1, 5]), st.booleans())
def test_homes_are_those_of_each_choice(
    found: tuple[tuple[int, ...], list[tuple[np.ndarray, np.ndarray]]], turn: int, crowded: bool
) -> None:
    shape, choices = found
    memory_of = np.arange(12) // (2 if crowded else 1)
    counts = [len(bounds) for bounds, _ in choices]
    replicas = np.asarray([users.shape[1] for _, users in choices])
    starts = np.concatenate([[0], np.cumsum(counts)])
    rows = np.repeat(np.arange(len(choices)), counts)
    firsts = np.concatenate([[0], np.cumsum(replicas[rows])])[: len(rows)]
    processors = np.concatenate([users.reshape(-1) for _, users in choices])
    bounds = np.concatenate([bounds for bounds, _ in choices])
    used = starts, tiles_of(bounds), firsts.astype(np.int64), replicas, processors.astype(np.int64)
    spread, where, *others = home_tables(shape, used, memory_of, turn, HOMES_IN_PARTS)
    passing, summed, gathered = others
    assert home_tables(shape, used, memory_of, turn, HOMES)[HOMES].there.sum() == 0
    for number, users in enumerate(choices):
        first = home_among(shape, [users], 0, None if turn == NO_TURN else turn)
        assert_home(spread, number, planned_home(shape, first, memory_of))
        there = plan_where_used(users) if len(users[0]) else None
        assert {bool(home.there[number]) for home in (where, *others)} == {there is not None}
        assert {bool(home.passing[number]) for home in (passing, gathered)} == {there is not None}
        assert {bool(home.summed[number]) for home in (passing, summed)} == {there is not None}
        assert not any(home.passing[number] for home in (spread, where, summed))
        assert not any(home.summed[number] for home in (spread, where, gathered))
        assert_home(where, number, planned_home(shape, there or first, memory_of))
        for home in others:
            assert_home(home, number, planned_home(shape, first, memory_of))


def assert_home(found: HomeTable, number: int, home: object) -> None:
    rows = slice(*found.blocks.starts[number : number + 2].tolist())
    boxes, axes = found.blocks.boxes[rows], home.blocks.shape[1]
    np.testing.assert_array_equal(found.colors[rows], home.colors)
    np.testing.assert_array_equal(boxes[:, 0], home.processors)
    np.testing.assert_array_equal(boxes[:, 1 : 1 + axes], home.blocks[:, :, 0])
    np.testing.assert_array_equal(boxes[:, 6 : 6 + axes], home.blocks[:, :, 1])


def convolution() -> mp.Graph:
    """Halos, strides, a bias that one part adds, and picked rows."""
    graph = mp.Graph("convolution")
    x, y = graph.input("x", (4, 4, 9, 9)), graph.input("y", (4,), dtype="int64")
    hidden = graph.max_pool2d(graph.conv2d(x, out_channels=6, kernel_size=3, stride=2, padding=1), kernel_size=2)
    graph.loss(graph.cross_entropy(graph.linear(graph.flatten(hidden), 5), y))
    return graph


@PROFILE
@given(st.integers(0, 2**32 - 1))
def test_tiles_are_those_of_each_split(seed: int) -> None:
    graph, chance = convolution(), Random(seed)
    node = chance.choice(graph.nodes)
    bound = graph.bound(node)
    # Degrees above an extent leave tiles empty.
    splits = [[chance.randint(1, 1 if f.highest_degree == 1 else 4) for f in bound.factors] for _ in range(4)]
    table = SplitTable(bound, np.asarray(splits, dtype=np.int64).reshape(4, len(bound.factors)))
    forward, backward = table.flops(node.operator)
    for number, degrees in enumerate(splits):
        own, mine = bound.table(tuple(degrees)), table.split == number
        np.testing.assert_array_equal(table.number[mine], own.busy)
        np.testing.assert_array_equal(table.index[mine], own.index[own.busy])
        for found, wanted in zip((forward, backward), tile_flops(node.operator, own), strict=True):
            np.testing.assert_array_equal(found[mine], wanted[own.busy])
        assert table.folds[:, number].tolist() == [fold is not None for fold in own.folds]
        for role, count in (("operand", len(node.operands)), ("operand_gradient", len(node.operands)), ("result", 1)):
            for place in range(count):
                bounds, rows = table.used(role, place)
                wanted_bounds, wanted_rows = own.used(role, place)
                own_rows = mine[rows]
                np.testing.assert_array_equal(bounds[own_rows], wanted_bounds)
                np.testing.assert_array_equal(table.number[rows[own_rows]], wanted_rows)
