"""Homes of weights: where their values live when a plan does not say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rects import rects_of
from small_plans import GRAPH, MACHINE, cut, single, with_operator

from maniple.operators.plan.plan import WeightPlan, default_home
from maniple.operators.plan.weight_home import home_among, planned_home
from maniple.operators.rules.tile import split_range
from maniple.process.error import RequestError
from maniple.regions.partition import blocks
from maniple.regions.rectangle import Rect
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.launch import Point

#       using operators                          parameter        home
HOMES = [
    ({"linear": ((0, 1), {"n": 2})}, "linear.weight", WeightPlan((2, 1), (0, 1))),
    ({"linear": ((3, 1), {"n": 2})}, "linear.bias", WeightPlan((2,), (3, 1))),
    ({"linear": ((3, 1, 2), {"n": 3})}, "linear.weight", WeightPlan((3, 1), (3, 1, 2))),
    ({"linear": ((2, 1), {"k": 2})}, "linear.weight", WeightPlan((1, 2), (2, 1))),
    ({"linear": ((2, 1), {"k": 2})}, "linear.bias", WeightPlan((1,), (2,))),
    ({"linear": ((0, 1, 2, 3), {"n": 2, "k": 2})}, "linear.weight", WeightPlan((2, 2), (0, 1, 2, 3))),
    ({"linear": ((0, 1, 2, 3), {"n": 2, "k": 2})}, "linear.bias", WeightPlan((2,), (0, 2))),
    # Both processors use the whole weight: cut along its largest dimension.
    ({"linear": ((1, 0), {"b": 2})}, "linear.weight", WeightPlan((1, 2), (0, 1))),
    ({"linear": ((1, 0), {"b": 2})}, "linear.bias", WeightPlan((2,), (0, 1))),
    # Two processors use each half, of five rows: each half is cut over those two, along the other dimension.
    ({"linear": ((0, 1, 2, 3), {"b": 2, "n": 2})}, "linear.weight", WeightPlan((2, 2), (0, 2, 1, 3))),
    # One processor runs both points: the weight stays there.
    ({"linear": ((2, 2), {"b": 2})}, "linear.weight", WeightPlan((1, 1), (2,))),
    ({"conv2d": ((3, 2, 1, 0), {"b": 4})}, "conv2d.bias", WeightPlan((4,), (0, 1, 2, 3))),
    # Replicas are two users.
    ({"linear": ((2, 1), {"replicas": 2})}, "linear.bias", WeightPlan((2,), (1, 2))),
    ({}, "linear.bias", WeightPlan((1,), (0,))),
]


@pytest.mark.parametrize(("changes", "parameter", "home"), HOMES)
def test_weights_stay_where_one_processor_uses_them(
    changes: dict[str, tuple[tuple[int, ...], dict[str, int]]], parameter: str, home: WeightPlan
) -> None:
    operators = {
        name: cut(GRAPH, name, changes[name][0], **changes[name][1]) if name in changes else old
        for name, old in single().operators
    }
    assert default_home(GRAPH, operators, parameter, MACHINE) == home


def test_a_home_has_at_most_one_block_per_index() -> None:
    machine = Machine.preset("cpu:6")
    operators = tuple(
        (name, cut(GRAPH, name, (5, 4, 3, 2, 1, 0), b=6) if name == "conv2d" else old)
        for name, old in single().operators
    )
    assert default_home(GRAPH, operators, "conv2d.bias", machine) == WeightPlan((4,), (0, 1, 2, 3))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_home_holds_every_element_once_among_its_users(data: st.DataObject) -> None:
    node = next(node for node in GRAPH.nodes if node.name == "linear")
    bound = GRAPH.bound(node)
    degrees = {factor.name: data.draw(st.integers(1, min(3, factor.highest_degree))) for factor in bound.factors}
    tiles = bound.tiles(degrees)
    processors = tuple(data.draw(st.lists(st.integers(0, 3), min_size=len(tiles), max_size=len(tiles))))
    operators = tuple(
        (name, cut(GRAPH, name, processors, **degrees) if name == "linear" else old) for name, old in single().operators
    )
    for place, tensor in ((1, GRAPH.parameters[2]), (2, GRAPH.parameters[3])):
        home = default_home(GRAPH, operators, tensor.name, MACHINE)
        users: dict[tuple[int, ...], set[int]] = {}
        for tile, processor in zip(tiles, processors, strict=True):
            rect = tile.operand_rects[place]
            if rect is not None:
                for element in rect.points():
                    users.setdefault(element, set()).add(processor)
        everyone = set().union(*users.values())
        held = [
            (element, home.processors[block])
            for block, rect in enumerate(blocks(home.degrees).bind(Rect.of_shape(tensor.shape)).tiles)
            for element in rect.points()
        ]
        assert sorted(element for element, _ in held) == sorted(Rect.of_shape(tensor.shape).points())
        assert {processor for _, processor in held} <= everyone
        alone = {rect for tile in tiles if (rect := tile.operand_rects[place]) is not None}
        if sum(rect.volume for rect in alone) == len(users) and all(len(found) == 1 for found in users.values()):
            assert all(users[element] == {processor} for element, processor in held)


def test_blocks_of_a_table_that_groups_share_lie_in_one_tile_each() -> None:
    """Eight groups of eight use eight tiles of 50,257 words, of which 64 blocks would lie across seven borders."""
    words = np.asarray(split_range(50_257, 8))
    tiles = np.stack((words, np.tile((0, 768), (8, 1))), axis=1)
    users = np.arange(64).reshape(8, 8).T  # a member of each group uses each tile
    home = home_among((50_257, 768), [(tiles, users)], 0)
    assert home == WeightPlan((8, 8), tuple(users.reshape(-1).tolist()))
    # The rows of a table read by everybody do not say where it is cut.
    whole = np.asarray([((0, 50_257), (0, 768))]), np.arange(64).reshape(1, 64)
    assert home_among((50_257, 768), [whole, (tiles, users)], 0) == WeightPlan((8, 8), tuple(range(64)))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_where_tiles_cut_one_dimension_no_block_lies_in_two(data: st.DataObject) -> None:
    number, each, axis = (data.draw(st.integers(low, high)) for low, high in ((2, 5), (2, 5), (0, 1)))
    extents = [0, 0]
    extents[axis], extents[1 - axis] = data.draw(st.integers(number * each, 60)), data.draw(st.integers(each, 30))
    spans = np.tile(np.asarray(extents)[None, :, None] * (0, 1), (number, 1, 1))
    spans[:, axis] = split_range(extents[axis], number)
    users = np.asarray(data.draw(st.permutations(range(number * each)))).reshape(number, each)
    home = home_among(extents, [(spans, users)], 0)
    assert sorted(home.processors) == sorted(users.reshape(-1).tolist())
    for rect, owner in zip(blocks(home.degrees).bind(Rect.of_shape(extents)).tiles, home.processors, strict=True):
        (mine,) = np.flatnonzero((users == owner).any(axis=1)).tolist()
        assert Rect(tuple(spans[mine, :, 0].tolist()), tuple(spans[mine, :, 1].tolist())).contains(rect)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_every_memory_that_a_plan_names_holds_and_updates_a_block_once(data: st.DataObject) -> None:
    """Blocks without elements have no task; of replicas in one memory the first one stays."""
    memory_of = np.asarray([0, 0, 1, 1, 2])
    shape = tuple(data.draw(st.lists(st.integers(1, 5), max_size=3)))
    degrees = tuple(data.draw(st.integers(1, 3)) for _ in shape)
    replicas = data.draw(st.integers(1, 4))
    partition = blocks(degrees).bind(Rect.of_shape(shape))
    chosen = [data.draw(st.permutations(range(5)))[:replicas] for _ in partition.tiles]
    home = planned_home(shape, WeightPlan(degrees, tuple(np.concatenate(chosen).tolist()), replicas), memory_of)
    expected = []
    for color, rect, processors in zip(partition.colors.points(), partition.tiles, chosen, strict=True):
        first = {int(memory_of[processor]): processor for processor in reversed(processors)}
        kept = [processor for processor in processors if first[int(memory_of[processor])] == processor]
        if not rect.is_empty:
            expected += [(Point(color, processor, number), rect) for number, processor in enumerate(kept)]
    assert list(zip(home.points(), rects_of(home.blocks), strict=True)) == expected
    assert home.memories.tolist() == [memory_of[point.processor] for point, _ in expected]


def test_homes_of_what_is_not_there() -> None:
    with pytest.raises(RequestError, match=r"did you mean 'linear.bias'"):
        default_home(GRAPH, single().operators, "linear.bas", MACHINE)
    with pytest.raises(RequestError, match="processor 9 does not exist"):
        default_home(GRAPH, with_operator("linear", cut(GRAPH, "linear", (9,))).operators, "linear.bias", MACHINE)
