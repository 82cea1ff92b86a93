"""Trains a perceptron by data parallelism in each stage of ZeRO, over all ranks: `sharded.py OUT`.

Rank 0 writes to OUT, by stage: losses, parameters, the bytes that were predicted and measured, and the memory of rank 0
that was predicted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

import maniple as mp

BATCH, WIDTH, STEPS = 8, 64, 3


def network() -> mp.Graph:
    """Four linear layers, in double precision."""
    g = mp.Graph("perceptron")
    h, labels = g.input("x", (BATCH, WIDTH), "float64"), g.input("labels", (BATCH,), "int64")
    for _ in range(4):
        h = g.relu(g.linear(h, WIDTH))
    g.loss(g.cross_entropy(h, labels))
    return g


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of the steps."""
    chance = torch.Generator().manual_seed(4)
    for _ in range(STEPS):
        x = torch.randn(BATCH, WIDTH, generator=chance, dtype=torch.float64)
        yield x, torch.randint(WIDTH, (BATCH,), generator=chance)


def main(out: Path) -> None:
    """Train in all stages, and write."""
    graph, machine, found = network(), mp.Machine.detect(), {}
    plain = mp.search(graph, machine, strategy="data_parallel")
    for stage in range(4):
        plan = plain.with_zero(stage, graph, machine)
        with mp.Trainer(graph, plan, optimizer=mp.optim.AdamW(lr=0.01), seed=1) as trainer:
            losses = list(trainer.run(batches()))
            parameters = {name: value.tolist() for name, value in trainer.parameters().items()}
            found[stage] = (losses, parameters, trainer.bytes(), trainer.memory()[0]["predicted"])
    if mp.world().rank == 0:
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
