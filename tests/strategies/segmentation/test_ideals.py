"""Ideals, antichains and cut traffic against the definitions."""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maniple.strategies.pipeline.coarse_graph import CoarseGraph, compress, order
from maniple.strategies.pipeline.cost_graph import CostGraph, CostNode
from maniple.strategies.pipeline.ideals import Lattice, Links, chain, enumerate_ideals
from maniple.strategies.pipeline.linear_order import ORDERS
from maniple.strategies.pipeline.profile import read_profile

Fixture = Callable[..., Any]


def lattice_of(graph: CostGraph, limit: int = 10_000) -> Lattice:
    found = enumerate_ideals(Links.of(len(graph.nodes), graph.edges), limit)
    assert found is not None
    return found


def diamond() -> CostGraph:
    nodes = [CostNode(name, "", 1.0, 1.0, size, 0) for name, size in zip("abcd", (1, 2, 4, 8), strict=True)]
    return CostGraph.of("diamond", nodes, [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])


def test_a_diamond() -> None:
    graph = diamond()
    lattice = lattice_of(graph)
    crossing = lattice.crossing(CoarseGraph.whole(graph).tensors)
    rows = [(lattice.nodes(i), lattice.antichain(i), lattice.augment(i), int(crossing[i])) for i in range(len(lattice))]
    assert rows == [
        # ideal         antichain  crossing  bytes
        ((), (), (), 0),
        ((0,), (0,), (0,), 1),
        ((0, 1), (1,), (0, 1), 3),
        ((0, 2), (2,), (0, 2), 5),
        ((0, 1, 2), (1, 2), (1, 2), 6),
        ((0, 1, 2, 3), (3,), (), 0),
    ]


def test_all_ideals_of_random_graphs(make_graph: Fixture, list_ideals: Fixture, cut_size: Fixture) -> None:
    for seed in range(150):
        graph = make_graph(seed)
        lattice = lattice_of(graph)
        sets = [frozenset(lattice.nodes(i)) for i in range(len(lattice))]
        assert sorted(map(sorted, sets)) == sorted(map(sorted, list_ideals(graph)))
        assert [len(s) for s in sets] == sorted(len(s) for s in sets)
        crossing = lattice.crossing(CoarseGraph.whole(graph).tensors)
        weights = np.arange(1, len(graph.nodes) + 1, dtype=np.int64)
        for i, ideal in enumerate(sets):
            assert crossing[i] == cut_size(graph, ideal)
            assert lattice.total(weights)[i] == sum(node + 1 for node in ideal)
            assert set(lattice.augment(i)) == {a for a, b in graph.edges if a in ideal and b not in ideal}
            above = {sets[j] for j in lattice.larger[lattice.first[i] : lattice.first[i + 1]]}
            assert above == {s for s in sets if ideal < s and len(s) == len(ideal) + 1}


def test_more_than_one_word_of_nodes() -> None:
    nodes = [CostNode(f"n{i}", "", 1.0, 0.0, 1, 0) for i in range(150)]
    # Two chains of 60 and 70 between a head and a tail of 10 each.
    edges = [(f"n{i}", f"n{i + 1}") for i in range(149) if i != 69] + [("n9", "n70"), ("n69", "n140")]
    graph = CostGraph.of("chains", nodes, edges)
    assert len(lattice_of(graph)) == 10 + 61 * 71 + 10
    apart = CostGraph.of("apart", nodes[:12], [])
    assert len(lattice_of(apart)) == 2**12
    assert [int(n) for n in np.bincount([len(lattice_of(apart).nodes(i)) for i in range(2**12)])] == [
        comb(12, k) for k in range(13)
    ]


def test_the_limit_counts_the_empty_ideal() -> None:
    graph = diamond()
    links = Links.of(4, graph.edges)
    assert enumerate_ideals(links, 5) is None
    assert len(lattice_of(graph, 6)) == 6


def test_a_line_is_the_lattice_of_prefixes(make_graph: Fixture) -> None:
    for seed in range(20):
        graph = make_graph(seed)
        line = chain(Links.of(len(graph.nodes), graph.edges))
        assert [line.nodes(i) for i in range(len(line))] == [tuple(range(i)) for i in range(len(graph.nodes) + 1)]


@pytest.mark.parametrize("order", ORDERS)
def test_orders_are_topological(order: Any, make_graph: Fixture) -> None:
    for seed in range(100):
        graph = make_graph(seed)
        place = {node: at for at, node in enumerate(order(graph))}
        assert len(place) == len(graph.nodes)
        assert all(place[a] < place[b] for a, b in graph.edges)


def test_coarse_graphs_keep_cuts(make_graph: Fixture, cut_size: Fixture) -> None:
    for seed in range(100):
        graph = make_graph(seed)
        groups = compress(graph)
        assert sorted(node for group in groups for node in group) == list(range(len(graph.nodes)))
        coarse = CoarseGraph.of(graph, groups)
        lattice = enumerate_ideals(coarse.links, 10_000)
        assert lattice is not None
        crossing = lattice.crossing(coarse.tensors)
        weights = np.arange(1, len(graph.nodes) + 1, dtype=np.int64)
        gathered = lattice.total(coarse.gather(weights))
        for i in range(len(lattice)):
            nodes = frozenset(node for group in lattice.nodes(i) for node in groups[group])
            assert all(a in nodes for a, b in graph.edges if b in nodes)
            assert crossing[i] == cut_size(graph, nodes)
            assert gathered[i] == sum(node + 1 for node in nodes)


def test_compression_joins_chains_inside_branches_only() -> None:
    nodes = [CostNode(name, "", 1.0, 1.0, 1, 0) for name in "abcdefg"]
    #  a - b < (c - d) (e) > f - g: only c and d are a chain inside a branch.
    edges = [("a", "b"), ("b", "c"), ("c", "d"), ("b", "e"), ("d", "f"), ("e", "f"), ("f", "g")]
    graph = CostGraph.of("g", nodes, edges)
    assert compress(graph) == [(0,), (1,), (2, 3), (4,), (5,), (6,)]
    assert order(graph, [(6,), (5,), (4,), (2, 3), (1,), (0,)]) == compress(graph)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("alexnet", 23),
        ("vgg16", 41),
        ("resnet18", 101),
        ("resnet50", 241),
        ("resnet101", 411),
        ("densenet121", 431),
        ("gnmt_large", 16_886),
        ("inception_v3", 221_565),
    ],
)
def test_published_counts(reference_data: Path, name: str, count: int) -> None:
    graph = read_profile(reference_data / "pipedream-profiles" / f"{name}.txt")
    assert len(lattice_of(graph, 300_000)) == count
