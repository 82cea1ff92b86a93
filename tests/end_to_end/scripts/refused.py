"""A training that goes on from a checkpoint and then asks for what it must not: `refused.py WHAT FOLDER`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from math import nan
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import maniple as mp

BATCH, SAMPLES = 8, 40


def network(dtype: str = "float64") -> mp.Graph:
    """Two layers."""
    g = mp.Graph("small")
    x, y = g.input("x", (BATCH, 6), dtype), g.input("y", (BATCH,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(g.relu(g.linear(x, 10)), 5), y))
    return g


def plan(graph: mp.Graph, **semantics: str) -> mp.Plan:
    """Data parallelism."""
    return mp.search(graph, mp.Machine.detect(), strategy="data_parallel", semantics=semantics)


def batches(count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of torch's own loader over so many samples."""
    chance = torch.Generator().manual_seed(1)
    x, y = torch.randn(SAMPLES, 6, generator=chance, dtype=torch.float64), torch.arange(SAMPLES) % 5
    yield from DataLoader(TensorDataset(x[:count], y[:count]), BATCH)


def ask(trainer: mp.Trainer, what: str, folder: Path) -> None:
    """Ask for it, between steps."""
    if what == "rate":
        trainer.hyper["lr"] = nan
    elif what == "scheduler":
        trainer.torch_optimizer().param_groups[0]["lr"] = nan
        trainer.step(*next(batches(BATCH)))
    elif what == "scale":
        trainer.adopt(plan(network(), precision="fp16"))
    elif what == "loader":  # of one rank it ends early
        for batch in batches(SAMPLES - (2 * BATCH if mp.world().rank else 0)):
            trainer.step(*batch)
            trainer.save(folder)
        trainer.parameters()


def main(what: str, folder: Path) -> None:
    """Go on, and ask; whatever is refused changes nothing."""
    if what == "halves":  # of an operator that has none: products of doubles
        mp.Trainer(network(), plan(network(), precision="fp16"), optimizer=mp.optim.AdamW(lr=0.01))
    with mp.Trainer.resume(folder, network(), plan(network())) as trainer:
        before = {**trainer.state_dict(), **trainer.optimizer_state()}
        try:
            ask(trainer, what, folder)
        except mp.RequestError:
            after = {**trainer.state_dict(), **trainer.optimizer_state()}
            if any(not torch.equal(value, after[name]) for name, value in before.items()):
                raise AssertionError("what was refused changed the training") from None
            trainer.step(*next(batches(BATCH)))  # and the trainer goes on
            raise


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
