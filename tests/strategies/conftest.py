"""The graph that the strategies are tried on."""

from __future__ import annotations

import pytest

from maniple.operators.graph.graph import Graph


@pytest.fixture(scope="session")
def digits() -> Graph:
    """The convolutional network for 8 x 8 digits, batch 64."""
    g = Graph("digits")
    x, y = g.input("x", (64, 1, 8, 8)), g.input("y", (64,), dtype="int64")
    h = g.relu(g.conv2d(x, 8, 3, padding=1))
    h = g.max_pool2d(g.relu(g.conv2d(h, 16, 3, padding=1)), 2)
    h = g.relu(g.linear(g.flatten(h), 64))
    logits = g.linear(h, 10)
    g.loss(g.cross_entropy(logits, y))
    g.output("logits", logits)
    return g
