"""Seams of small graphs, drawn, and what the additive model says of results that are computed again."""

from __future__ import annotations

import numpy as np

import maniple as mp
from maniple.strategies.frontier.additive_model import additive_model
from maniple.strategies.frontier.full_split import full_splits
from maniple.strategies.frontier.seam import recomputable, seams
from maniple.strategies.interface.space import Space
from maniple.strategies.interface.strategy import Problem


def blocks() -> mp.Graph:
    """Two blocks, the input of each added to what it makes, and a head."""
    graph = mp.Graph("blocks")
    x, y = graph.input("x", (8, 12)), graph.input("y", (8,), dtype="int64")
    x = graph.linear(x, 12)
    for _ in range(2):
        x = graph.add(x, graph.linear(graph.relu(graph.linear(x, 24)), 12))
    graph.loss(graph.cross_entropy(graph.linear(x, 4), y))
    return graph


def names(graph: mp.Graph) -> list[str]:
    return [graph.nodes[number].name for number in sorted(seams(graph))]


def test_a_seam_is_what_goes_into_a_layer() -> None:
    """linear | linear relu linear add | linear relu linear add | linear cross_entropy"""
    graph = blocks()
    assert names(graph) == ["linear", "add", "add_1"]
    again = [node.name for node, may in zip(graph.nodes, recomputable(graph), strict=True) if may]
    assert again == ["linear_1", "relu", "linear_2", "linear_3", "relu_1", "linear_4"]


def test_what_many_read_keeps_no_segment_open() -> None:
    """An encoder's result that both layers of a decoder read, with two readers or with six."""

    def graph_of(readers: int) -> mp.Graph:
        graph = mp.Graph("decoder")
        x, y = graph.input("x", (8, 12)), graph.input("y", (8,), dtype="int64")
        state = given = graph.linear(x, 12)
        for _ in range(readers):
            state = graph.relu(graph.add(graph.linear(state, 12), given))
        graph.loss(graph.cross_entropy(graph.linear(state, 4), y))
        return graph

    assert names(graph_of(3)) == ["linear", "relu_2"]
    assert names(graph_of(6)) == ["linear", *("relu", "relu_1", "relu_2", "relu_3", "relu_4", "relu_5")]


def test_what_comes_after_the_last_seam_is_not_computed_again() -> None:
    graph = mp.Graph("ladder")
    x, y = graph.input("x", (8, 12)), graph.input("y", (8,), dtype="int64")
    one = graph.linear(x, 12)
    two = graph.linear(x, 12)
    for _ in range(2):
        one, two = graph.add(graph.linear(one, 12), two), graph.add(graph.linear(two, 12), one)
    graph.loss(graph.cross_entropy(graph.add(one, two), y))
    assert names(graph) == ["linear"]
    assert not any(recomputable(graph))


def test_again_is_forward_once_more_and_nothing_kept() -> None:
    """By hand from the terms of the cost: relu's result is read by its own backward pass, and by that of linear_2."""
    graph = blocks()
    space = Space.of(graph, 4)
    choices = tuple(full_splits(space, number) for number in range(len(space.names)))
    may = recomputable(graph)
    model, cost, _ = additive_model(Problem(graph, mp.Machine.preset("p100x4")), space, choices, may)
    number = {name: place for place, name in enumerate(space.names)}
    relu, linear = number["relu"], number["linear_2"]
    count, wide = len(choices[relu]), len(choices[linear])
    assert model.sizes[relu] == 2 * count
    assert model.sizes[number["add"]] == len(choices[number["add"]])
    memory, ticks = model.own[relu]
    for place, choice in enumerate(choices[relu]):
        assert ticks[count + place, 0] - ticks[place, 0] == round(cost.again_ns(relu, choice)) > 0
        # Floats of the largest part.
        part = 8 * 24 // (choice.degrees[0] * choice.degrees[1])
        assert memory[place, 0] - memory[count + place, 0] == 4 * part
    memory, ticks = model.edges[relu, linear]
    once = np.rint(cost.edge(relu, linear) / 1e-9).astype(np.int64)
    value = np.rint(cost.edge_again(relu, linear) / 1e-9).astype(np.int64)
    assert np.array_equal(ticks[:count, :wide], once)
    assert np.array_equal(ticks[count:, :wide], once + value)
    assert np.array_equal(ticks[count:, wide:], once + value)
    assert memory[:count].any()
    assert not memory[count:].any()
    # The gradient of a sum needs no value.
    linear, add = number["linear_2"], number["add"]
    ticks, once = model.edges[linear, add][1], np.rint(cost.edge(linear, add) / 1e-9).astype(np.int64)
    assert np.array_equal(ticks, np.concatenate([once, once]))
