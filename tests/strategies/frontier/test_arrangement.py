"""Arrangements: turns by hand, what is compared once, and places where stages may end."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from layered_graph import layers

import maniple as mp
from maniple.strategies.frontier.arrangement import Arrangement, arrangements, least_of_wholes, most_even
from maniple.strategies.frontier.own_price import Turns
from maniple.strategies.frontier.stage_search import StageSearch
from maniple.strategies.interface.strategy import Problem


def test_turns_are_the_table_of_the_docstring() -> None:
    """Two stages, four micro-batches; gpipe holds all of them, in as many rounds."""
    assert Arrangement(2, "1f1b", 4).turns() == (Turns(4, 5.0, 2), Turns(4, 5.0, 1))
    assert Arrangement(2, "gpipe", 4).turns() == (Turns(4, 5.0, 4), Turns(4, 5.0, 4))
    assert Arrangement(1, "1f1b", 4).turns() == (Turns(4, 4.0, 1),)
    shorter = Arrangement(2, "zb_h1", 4).turns()
    assert all(turns.rounds < 5.0 for turns in shorter)


def test_what_the_model_cannot_tell_apart_is_compared_once() -> None:
    found = arrangements(Problem(layers(), mp.Machine.preset("p100x4")))
    assert {each.order for each in found if each.stages == 1} == {"1f1b"}
    assert "gpipe" not in {each.order for each in found}
    assert {(each.stages, each.micro_batches) for each in found} == {
        (1, 2),
        (1, 4),
        *((s, m) for s in (2, 4) for m in (s, 2 * s, 4 * s) if m <= 8),
    }


def test_places_where_stages_may_end_are_as_many_as_stages_are_compared_with() -> None:
    """Of sixteen layers, one takes nearly all the time: the places that are nearest to even shares are its two."""
    graph = mp.Graph("uneven")
    x, y = graph.input("x", (16, 8)), graph.input("y", (16,), dtype="int64")
    for number in range(16):
        x = graph.relu(graph.linear(x, 4096 if number == 8 else 8))
    graph.loss(graph.cross_entropy(x, y))
    problem = Problem(graph, mp.Machine.preset("p100x16"))
    most = max(arrangements(problem), key=lambda each: each.stages)
    assert most.stages == 8
    assert StageSearch(problem, (False,) * len(graph.nodes), 0.01, 1).points(most)


@given(st.lists(st.integers(1, 50), min_size=3, max_size=12), st.data())
def test_the_most_even_places_are_places_in_order(times: list[int], data: st.DataObject) -> None:
    places = range(1, len(times))
    count = data.draw(st.integers(1, len(places)))
    spent = [sum(times[:place]) for place in range(len(times) + 1)]
    found = most_even(places, spent, count)
    assert len(found) == count
    assert set(found) <= set(places)
    assert all(one < other for one, other in pairwise(found))
    if count == 1:
        half = spent[-1] // 2
        assert abs(spent[found[0]] - half) == min(abs(spent[place] - half) for place in places)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 6))
def test_what_a_whole_needs_at_least_is_the_least_of_all_that_have_the_stage(seed: int, count: int, last: int) -> None:
    """Against all places, where some stages share weights; memory and time are the least by themselves."""
    chance = np.random.default_rng(seed)
    patterns = [frozenset[int](), frozenset({7})]
    shared = {place: patterns[int(chance.integers(4) == 0)] for place in combinations(range(last + 1), 2)}
    pattern = tuple(patterns[int(chance.integers(4) == 0)] for _ in range(count))
    needs = {(stage, *place): tuple(chance.integers(0, 50, 2).tolist()) for stage in range(count) for place in shared}
    wholes: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for cuts in combinations(range(1, last), count - 1):
        stages = [(stage, *place) for stage, place in enumerate(pairwise((0, *cuts, last)))]
        if all(shared[start, end] == pattern[stage] for stage, start, end in stages):
            most = tuple(max(needs[stage][axis] for stage in stages) for axis in (0, 1))
            for stage in stages:
                wholes.setdefault(stage, []).append(most)
    found = least_of_wholes(pattern, shared, last, lambda *stage: needs[stage])
    assert found == {
        stage: (min(memory for memory, _ in most), min(ticks for _, ticks in most)) for stage, most in wholes.items()
    }
