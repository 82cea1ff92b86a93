"""Trains with checkpoints and a loader, and goes on by itself: `FOLDER STEPS FAULT`, FAULT `none`, `kill` or `wait`.

What fails does so in the first attempt, on the last rank, as step 7 has been done. Rank 0 prints `[step, loss]`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import torch

import maniple as mp


class Samples:
    """48 samples, each with its number."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, number: int) -> Mapping[str, torch.Tensor]:
        chance = torch.Generator().manual_seed(number)
        x = torch.randn(6, generator=chance, dtype=torch.float64)
        x[0] = number / 48
        return {"x": x, "y": torch.tensor(number % 5)}


def network() -> mp.Graph:
    g = mp.Graph("small")
    x, y = g.input("x", (12, 6), dtype="float64"), g.input("y", (12,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(g.dropout(g.relu(g.linear(x, 10)), 0.3), 5), y))
    return g


def main(folder: Path, steps: int, fault: str) -> None:
    graph, world = network(), mp.world()
    plan = mp.search(graph, mp.Machine.detect(), strategy="data_parallel")
    with mp.Trainer.resume(folder, graph, plan, optimizer=mp.optim.AdamW(lr=0.01), begin=True, seed=3) as trainer:
        loader = mp.data.Loader(Samples(), 12, seed=5, start=trainer.position)
        while True:
            for batch in loader:
                step = int(trainer.optimizer_state()["step"])
                if step == steps:
                    return
                loss = trainer.step(batch)
                if world.rank == 0:
                    print(json.dumps([step, loss]), flush=True)  # noqa: T201 - the test reads it
                if step % 3 == 2:
                    trainer.save(folder, data=loader)
                if step == 7 and world.attempt == 0 and world.rank == world.size - 1:
                    if fault == "kill":
                        os.kill(os.getpid(), signal.SIGKILL)
                    if fault == "wait":
                        threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
