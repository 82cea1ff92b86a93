"""Trains with checkpoints and a loader, and goes on by itself: `FOLDER STEPS FAULT`, FAULT `none`, `kill` or `wait`.

What fails does so in the first attempt, on the last rank, as step 7 has been done. Rank 0 prints `[step, loss]`. Where
the file of a frontier follows, the plan is its leanest for as many ranks as there are; else it is searched for.
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


def leanest(frontier: mp.Frontier) -> mp.Plan:
    """The plan of a frontier that takes the least memory."""
    return min(frontier.points, key=lambda point: point.peak_memory_bytes).plan


def main(folder: Path, steps: int, fault: str, frontier: str | None = None) -> None:
    graph, world = network(), mp.world()
    if frontier is None:
        plan = mp.search(graph, mp.Machine.detect(), strategy="data_parallel")
    else:
        plan = leanest(mp.Frontier.load(frontier).at(devices=world.size))
        if world.rank == 0:
            print(f"plan for {len({p for _, each in plan.operators for p in each.processors})}", flush=True)  # noqa: T201
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
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
