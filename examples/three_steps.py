"""Three steps of a small network: what the examples of devices, transports and launchers of one's own run.

python examples/three_steps.py
maniple run --nodes 2 examples/three_steps.py
"""

from __future__ import annotations

import sys

import torch

import maniple as mp
from maniple.plugins import LaunchRequest, run


def train() -> None:
    """Train, and print the losses to the last bit."""
    graph = mp.Graph("network")
    x, y = graph.input("x", (8, 30)), graph.input("y", (8,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, 64)), 4), y))
    draw = torch.Generator().manual_seed(0)
    samples, labels = torch.randn(8, 30, generator=draw), torch.randint(0, 4, (8,), generator=draw)
    plan = mp.search(graph, mp.Machine.detect(), strategy="data_parallel")
    with mp.Trainer(graph, plan=plan, optimizer=mp.SGD(0.1), seed=0) as trainer:
        print("losses", *(repr(trainer.step(samples, labels)) for _ in range(3)))


def compare(file: str, **own: str) -> None:
    """Have two ranks train without a part of one's own and with it; the losses are the same.

    Args:
        file: the program that knows the part; started as a rank, with the argument `train`, it trains.
        own: the part, as options of `maniple run`.
    """
    if sys.argv[1:] == ["train"]:
        train()
        return
    for options in ({}, own):
        print(f"two ranks with {options or 'what is there'}", flush=True)
        status = run(LaunchRequest((file, "train"), nodes=2, imports="maniple.rank_imports", **options))
        if status:
            sys.exit(status)


if __name__ == "__main__":
    train()
