"""A graph of layers that are alike, with a seam behind each, which searches over stages are tried with."""

from __future__ import annotations

import maniple as mp


def layers(count: int = 3, batch: int = 8, width: int = 12) -> mp.Graph:
    """Some linear layers with a ReLU each, and a classifier of four classes."""
    graph = mp.Graph("layers")
    x, y = graph.input("x", (batch, width)), graph.input("y", (batch,), dtype="int64")
    for _ in range(count):
        x = graph.relu(graph.linear(x, width))
    graph.loss(graph.cross_entropy(graph.linear(x, 4), y))
    return graph
