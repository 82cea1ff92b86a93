"""Homes: where a weight may live, beside what plans of ZeRO's stages say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import maniple as mp
from maniple.strategies.frontier.additive_memory import AdditiveMemory
from maniple.strategies.frontier.homes import homes_of, plan_where_used, weight_plan
from maniple.strategies.interface.space import Choice, Space
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.optcnn.additive_cost import AdditiveCost
from maniple.strategies.optcnn.home_table import GATHERED, PASSING, SPREAD, SUMMED, WHERE_USED
from maniple.strategies.simulation.allocation import allocated_bytes


def test_a_home_where_used_has_each_part_at_all_who_use_it() -> None:
    """As in `weight_home`: b=2 n=2 on four processors uses each half of the weight twice."""
    tiles = np.array([[[0, 5], [0, 64]], [[5, 10], [0, 64]], [[0, 5], [0, 64]], [[5, 10], [0, 64]]])
    home = plan_where_used((tiles, np.array([[0], [1], [2], [3]])))
    assert home is not None
    assert (home.degrees, home.processors, home.replicas) == ((2, 1), (0, 2, 1, 3), 2)
    assert plan_where_used((tiles[:2], np.array([[0], [1]]))) is None


def cost_of(choice: Choice) -> AdditiveCost:
    graph = mp.Graph("one layer")
    x, y = graph.input("x", (8, 32)), graph.input("y", (8,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, 64)), 4), y))
    space, problem = Space.of(graph, 4), Problem(graph, mp.Machine.preset("p100x4"))
    return AdditiveCost(
        problem, space, [(choice,), *(((Choice((1,) * len(own.factors)),)) for own in space.operators[1:])]
    )


def test_homes_are_those_of_zero() -> None:
    """Of samples cut in four: a quarter each, all of it at each, and a quarter that is whole only in passes."""
    choice = Choice((4, 1, 1))
    cost = cost_of(choice)
    graph = cost.operators.plan_free.graph
    machine = mp.Machine.preset("p100x4")
    plan = mp.search(graph, machine)
    (weight, *_) = cost.operators.weights(0)
    name = graph.tensors[weight].name
    spread = cost.operators.home(weight, (0,), (choice,)).home.plan
    assert spread == plan.with_zero(1, graph, machine).weight(name)
    assert weight_plan(cost.operators, weight, 0, choice, SPREAD) is None
    assert weight_plan(cost.operators, weight, 0, choice, WHERE_USED) == plan.with_zero(0, graph, machine).weight(name)
    assert weight_plan(cost.operators, weight, 0, choice, SUMMED) == plan.with_zero(2, graph, machine).weight(name)
    assert weight_plan(cost.operators, weight, 0, choice, PASSING) == plan.with_zero(3, graph, machine).weight(name)
    gathered = weight_plan(cost.operators, weight, 0, choice, GATHERED)
    assert gathered == replace(plan.with_zero(3, graph, machine).weight(name), sums="use")


def test_an_optimizers_state_is_spread_apart_from_the_weight() -> None:
    """By the runtime's own memory plan, with states and without: of two homes of one choice, they are whole in one."""
    graph = mp.Graph("layers")
    hidden, y = graph.input("x", (4, 256)), graph.input("y", (4,), dtype="int64")
    for _ in range(8):
        hidden = graph.relu(graph.linear(hidden, 256))
    graph.loss(graph.cross_entropy(hidden, y))
    machine, adamw = mp.Machine.preset("cpu:4x1"), mp.optim.AdamW(lr=0.1)
    problem, space = Problem(graph, machine, optimizer=adamw), Space.of(graph, 4)
    samples = [Choice((4, *(1,) * (len(own.factors) - 1))) for own in space.operators]
    cost = AdditiveCost(problem, space, [(choice,) for choice in samples])
    plan = mp.search(graph, machine, strategy="data_parallel")
    held = {}
    for home in (SPREAD, WHERE_USED):
        homes = dict(plan.weights)
        for number, choice in enumerate(samples):
            for tensor in cost.operators.weights(number):
                name = graph.tensors[tensor].name
                homes[name] = weight_plan(cost.operators, tensor, number, choice, home) or homes[name]
        at_home = replace(plan, weights=tuple(homes.items()))
        whole, without = (max(allocated_bytes(graph, machine, at_home, one)) for one in (adamw, mp.SGD(lr=0.1)))
        held[home] = whole - without
    states = 2 * 8 * 4 * (256 * 256 + 256)
    assert held[WHERE_USED] == pytest.approx(states, rel=0.03)
    assert held[SPREAD] == pytest.approx(states / 4, rel=0.03)
    memory = AdditiveMemory(cost.tables)
    model = {
        home: sum(
            memory.own_bytes(number, choice, homes_of(cost.operators, number, choice)[home])
            for number, choice in enumerate(samples)
            if cost.operators.weights(number)
        )
        for home in (SPREAD, WHERE_USED)
    }
    assert model[WHERE_USED] - model[SPREAD] == states * 3 // 4


def test_what_is_whole_only_in_passes_moves_twice_and_holds_its_part() -> None:
    """64 x 32 floats and 64 of the bias on four: value, gradient and velocity of a quarter."""
    choice = Choice((4, 1, 1))
    cost = cost_of(choice)
    found = homes_of(cost.operators, 0, choice)
    memory = AdditiveMemory(cost.tables)
    held = {home: memory.own_bytes(0, choice, weights) for home, weights in found.items()}
    rest = memory.own_bytes(0, choice, [])
    assert held[PASSING] - rest == 3 * 4 * (64 * 32 + 64) // 4
    assert held[WHERE_USED] - rest == 3 * 4 * (64 * 32 + 64)
    # The value and what the processor contributes to its gradient are whole.
    assert held[SPREAD] - rest == 2 * 4 * (64 * 32 + 64) + 4 * (64 * 32 + 64) // 4
    moved = {
        home: [cost.synchronisation_ns(tensor, 0, choice, lives) for tensor, lives in weights]
        for home, weights in found.items()
    }
    weight, bias = range(2)
    assert moved[PASSING][weight] > moved[SPREAD][weight]
    assert moved[PASSING][bias] == moved[SPREAD][bias]  # backward reads no bias
    assert moved[WHERE_USED][weight] != moved[SPREAD][weight]


def test_homes_of_a_weight_in_place_are_one() -> None:
    choice = Choice((1, 4, 1))
    assert list(homes_of(cost_of(choice).operators, 0, choice)) == [SPREAD]
