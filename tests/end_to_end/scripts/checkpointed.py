"""Trains a small network with checkpoints; `WHAT FOLDER` says how it begins and how it ends."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import maniple as mp
from maniple import trainer_adoption
from maniple.runtime.execution.replay import Replay

STEPS = 8


def network(width: int = 10) -> mp.Graph:
    g = mp.Graph("small")
    x, y = g.input("x", (12, 6), dtype="float64"), g.input("y", (12,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(g.dropout(g.relu(g.linear(x, width)), 0.3), 5), y))
    return g


def batch(step: int) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(step)
    x = torch.randn((12, 6), generator=chance, dtype=torch.float64)
    return {"x": x, "y": torch.randint(5, (12,), generator=chance)}


def plan(seed: int, graph: mp.Graph) -> mp.Plan:
    return mp.search(graph, mp.Machine.detect(), strategy="random", seed=seed)


def end_at(number: int) -> None:
    """Move regions one by one, and have this process killed as it is about to move one; -1 for none of them."""
    submit, turns = Replay.submit, trainer_adoption.in_turns
    count = iter(range(1_000_000))

    def kill(replay: Replay) -> Any:
        if next(count) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return submit(replay)

    trainer_adoption.in_turns = lambda moves, *given: [  # type: ignore[assignment]
        (move,) for turn in turns(moves, *given) for move in turn
    ]
    Replay.submit = kill  # type: ignore[method-assign]


def main(what: str, folder: Path) -> None:
    graph, world = network(11 if what == "other" else 10), mp.world()
    if what in {"resume", "other"}:
        trainer = mp.Trainer.resume(folder, graph, plan(4, graph) if world.size != 2 else None)
    else:
        trainer = mp.Trainer(graph, plan(3, graph), optimizer=mp.optim.AdamW(lr=0.01))
    with trainer:
        first = int(trainer.optimizer_state()["step"])
        for step in range(first, STEPS):
            loss = trainer.step(**batch(step))
            if world.rank == 0:
                print(json.dumps([step, loss]), flush=True)  # noqa: T201 - the test reads it
            if what == "kill":
                trainer.save(folder, wait=step % 2 == 0)
                if step == 5 and world.rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
            if what == "adopt" and step == 3:
                end_at(2 if world.rank == 1 else -1)
                trainer.adopt(mp.search(graph, mp.Machine.detect(), strategy="data_parallel"))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
