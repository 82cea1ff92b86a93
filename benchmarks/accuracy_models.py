"""Small models whose steps are predicted and measured: five of plain layers, five imported from modules.

The imported ones have batch norms, layer norms, attention, recurrence, dropout and max-pools.
"""

from __future__ import annotations

import maniple as mp
from maniple.models import model
from maniple.operators.graph.graph import Graph


def wide(batch: int) -> Graph:
    """Convolutions with many channels and few weights in the end."""
    g = mp.Graph("wide")
    x, y = g.input("x", (batch, 3, 32, 32)), g.input("y", (batch,), dtype="int64")
    h = g.relu(g.conv2d(x, out_channels=32, kernel_size=3, padding=1))
    h = g.relu(g.conv2d(h, out_channels=64, kernel_size=3, stride=2, padding=1))
    h = g.relu(g.conv2d(h, out_channels=64, kernel_size=3, stride=2, padding=1))
    g.loss(g.cross_entropy(g.linear(g.flatten(h), out_features=10), y))
    return g


def deep(batch: int) -> Graph:
    """Eight equal dense layers, so that plans hardly differ."""
    g = mp.Graph("deep")
    x, y = g.input("x", (batch, 512)), g.input("y", (batch,), dtype="int64")
    h = x
    for _ in range(8):
        h = g.relu(g.linear(h, out_features=512))
    g.loss(g.cross_entropy(g.linear(h, out_features=10), y))
    return g


def branched(batch: int) -> Graph:
    """Two branches that operators could share out."""
    g = mp.Graph("branched")
    x, y = g.input("x", (batch, 1024)), g.input("y", (batch,), dtype="int64")
    left, right = (g.relu(g.linear(x, out_features=1024)) for _ in range(2))
    g.loss(g.cross_entropy(g.linear(g.add(left, right), out_features=10), y))
    return g


def graphs() -> dict[str, Graph]:
    """All of them, by name."""
    return {
        "digits_cnn": model("digits_cnn", 256),
        "mlp": model("mlp", 128),
        "wide": wide(32),
        "deep": deep(256),
        "branched": branched(128),
        "alexnet": model("alexnet", 16, image=64, classes=10, shrink=4),
        "resnet18": model("resnet18", 16, image=32, classes=10, shrink=4),
        "gpt": model("gpt", 8, words=256, steps=64, width=128, heads=4, layers=2),
        "transformer": model("transformer", 8, words=256, steps=32, width=128, heads=4, inner=256, layers=2),
        "rnnlm": model("rnnlm", 32, words=1000, width=256, layers=2, steps=16, chunk=4),
    }
