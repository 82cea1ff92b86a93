"""Random graphs of costs, and every pipeline of a small one, enumerated without any of the code that is tested."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import combinations

import pytest

from maniple.strategies.pipeline.cost_graph import CostGraph, CostNode

Ideal = frozenset[int]
Chain = tuple[tuple[Ideal, Ideal, int], ...]
"""Stages: (done before, done after, replicas)."""


def random_graph(seed: int, most: int = 10) -> CostGraph:
    """Make a graph of up to ``most`` nodes with any number of sources, sinks and skips."""
    rng = random.Random(seed)
    count, density = rng.randint(1, most), rng.choice((0.1, 0.25, 0.5, 0.8))
    starts = random.Random(seed + 1000)
    nodes = [
        CostNode(
            id=f"n{place}",
            label=rng.choice(("Conv2d", "ReLU")),
            forward_s=rng.choice((0.0, rng.randint(1, 40) * 1e-3)),
            backward_s=rng.randint(0, 60) * 1e-3,
            activation_bytes=rng.randint(0, 30),
            parameter_bytes=rng.choice((0, rng.randint(1, 40))),
            stored_bytes=rng.randint(0, 30),
            forward_start_s=starts.randint(0, 3) * 1e-3,
            backward_start_s=starts.choice((0.0, 2e-3)),
        )
        for place in range(count)
    ]
    edges = [(f"n{a}", f"n{b}") for a, b in combinations(range(count), 2) if rng.random() < density]
    return CostGraph.of(f"random {seed}", nodes, edges)


def all_ideals(graph: CostGraph) -> list[Ideal]:
    """List the ideals by filtering all subsets."""
    count = len(graph.nodes)
    subsets = (frozenset(chosen) for size in range(count + 1) for chosen in combinations(range(count), size))
    return [s for s in subsets if all(a in s for a, b in graph.edges if b in s)]


def chains(ideals: list[Ideal], start: Ideal, end: Ideal, devices: int, most: int) -> Iterator[Chain]:
    """Yield every pipeline from one ideal to another on at most some devices, at most ``most`` for each stage."""
    if start == end:
        yield ()
        return
    if devices == 0:
        return
    later = [reached for reached in ideals if start < reached <= end]
    for reached in later:
        for replicas in range(1, min(devices, most) + 1):
            for rest in chains(later, reached, end, devices - replicas, most):
                yield ((start, reached, replicas), *rest)


def crossing(graph: CostGraph, ideal: Ideal) -> int:
    """Add up the outputs of nodes inside that are read outside."""
    leaving = {a for a, b in graph.edges if a in ideal and b not in ideal}
    return sum(graph.nodes[node].activation_bytes for node in leaving)


@pytest.fixture(scope="session")
def make_graph() -> Callable[..., CostGraph]:
    return random_graph


@pytest.fixture(scope="session")
def list_ideals() -> Callable[[CostGraph], list[Ideal]]:
    return all_ideals


@pytest.fixture(scope="session")
def list_chains() -> Callable[..., Iterator[Chain]]:
    return chains


@pytest.fixture(scope="session")
def cut_size() -> Callable[[CostGraph, Ideal], int]:
    return crossing
