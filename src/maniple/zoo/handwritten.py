"""Models that are written by hand as task graphs, for examples and tests."""

from __future__ import annotations

from maniple.operators.graph.graph import Graph


def digits_cnn(batch: int = 64, dtype: str = "float32") -> Graph:
    """A LeNet-like network for 8 x 8 grey images of ten digits.

    Args:
        batch: samples of a step.
        dtype: of the images, and so of the parameters.
    """
    g = Graph("digits_cnn")
    x, y = g.input("x", (batch, 1, 8, 8), dtype=dtype), g.input("y", (batch,), dtype="int64")
    h = g.relu(g.conv2d(x, out_channels=16, kernel_size=3, padding=1))
    h = g.relu(g.conv2d(h, out_channels=32, kernel_size=3, padding=1))
    h = g.max_pool2d(h, kernel_size=2)
    h = g.relu(g.linear(g.flatten(h), out_features=64))
    logits = g.linear(h, out_features=10)
    g.loss(g.cross_entropy(logits, y))
    g.output("logits", logits)
    return g


def mlp(batch: int = 256, dtype: str = "float32") -> Graph:
    """A perceptron of 784-2048-2048-10 features.

    Args:
        batch: samples of a step.
        dtype: of the inputs, and so of the parameters.
    """
    g = Graph("mlp")
    x, y = g.input("x", (batch, 784), dtype=dtype), g.input("y", (batch,), dtype="int64")
    h = g.relu(g.linear(x, out_features=2048))
    h = g.relu(g.linear(h, out_features=2048))
    logits = g.linear(h, out_features=10)
    g.loss(g.cross_entropy(logits, y))
    g.output("logits", logits)
    return g
