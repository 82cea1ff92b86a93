"""Stage groups: which are alike, and which weights stages share."""

from __future__ import annotations

from itertools import pairwise

import maniple as mp
from maniple.strategies.frontier.own_price import Turns
from maniple.strategies.frontier.stage_group import AlikeProcessors, StageGroup, shared_weights
from maniple.strategies.frontier.stage_search import StageSearch
from maniple.strategies.interface.strategy import Problem


def test_groups_are_alike_where_all_ways_between_them_are() -> None:
    """Eight P100 on two hosts, four stages: those of one host are like those of the other, and across is another."""
    alike = AlikeProcessors(mp.Machine.preset("p100x8"))
    stages = [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert alike.first(stages[0]) == (stages[0],)
    assert alike.first(stages[3]) == (stages[0],)
    assert alike.first(stages[1], stages[0]) == (stages[1], stages[0])
    assert alike.first(stages[3], stages[2]) == (stages[1], stages[0])
    assert alike.first(stages[2], stages[1]) == (stages[2], stages[1])
    assert alike.first(stages[3], stages[0]) == (stages[2], stages[1])


def test_ways_that_share_a_link_are_not_like_those_that_do_not() -> None:
    """Two pairs of processors over one switch, and over none: links of one rate, which in the first all pass."""
    alike = AlikeProcessors(mp.Machine.preset("k80x8"))
    within, across = [(0, 1), (2, 3)], [(0, 1), (4, 5)]
    assert alike.first(*within) == tuple(within)
    assert alike.first(*across) == tuple(across)


def test_the_likeness_of_a_group_is_of_all_that_it_has_to_do_with() -> None:
    alike = AlikeProcessors(mp.Machine.preset("p100x8"))
    near = StageGroup((2, 3), (0, 1), ((7, ((0, 1),)),))
    far = StageGroup((2, 3), (0, 1), ((7, ((4, 5),)),))
    assert alike.likeness(near) != alike.likeness(far)
    assert alike.likeness(near) == alike.likeness(StageGroup((6, 7), (4, 5), ((7, ((4, 5),)),)))
    assert alike.likeness(near) != alike.likeness(StageGroup((2, 3), (0, 1)))


def test_what_stages_share_is_what_others_use_too() -> None:
    """By hand: a weight of operators 0, 2 and 4, another of 1 alone."""
    graph = mp.Graph("tied")
    x, y = graph.input("x", (8, 16)), graph.input("y", (8,), dtype="int64")
    weight = graph.parameter("weight", (16, 16))
    for number in range(5):
        x = graph.linear(x, 16, weight=weight, bias=False) if number % 2 == 0 else graph.relu(x)
    graph.loss(graph.cross_entropy(graph.linear(x, 4), y))
    search = StageSearch(Problem(graph, mp.Machine.preset("p100x4")), (False,) * len(graph.nodes), 0.0, 1)
    bounds = (0, 2, 3, 5, len(graph.nodes))
    found = shared_weights(search.terms((0,), Turns()).cost.operators, bounds)
    shared = frozenset([next(tensor.id for tensor in graph.parameters if tensor.name == "weight")])
    assert [found[pair] for pair in pairwise(range(len(bounds)))] == [shared, shared, shared, frozenset()]
    assert found[0, 3] == found[0, 4] == frozenset()
    assert found[1, 3] == shared
