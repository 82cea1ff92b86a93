"""Trains a chain of three stages without a flush, and goes on from a checkpoint: `flowing_again.py OUT RULE FOLDER`.

Ten batches, a checkpoint, twelve more. The first time rank 1 is killed as the 18th batch is asked for, in the steady
state; the second time the run begins with the checkpoint, and with a ramp. Rank 0 writes what the second had to OUT.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "oracles"))

from chained_stages import OPTIMIZERS, batches, chain, flowing

import maniple as mp

STAGES, SAVED, KILLED, STEPS = 3, 10, 18, 22


def main(out: str, rule: str, folder: str) -> None:
    """Train."""
    torch.set_num_threads(1)
    graph, world = chain(STAGES), mp.world()
    given = [{"x": x, "y": y} for x, y in batches(STEPS)]
    plan, optimizer = flowing(graph, STAGES, rule), OPTIMIZERS["descent"][0]

    def rest() -> Iterator[dict[str, torch.Tensor]]:
        for number, batch in enumerate(given[SAVED:], SAVED):
            if number == KILLED and world.attempt == 0 and world.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    with mp.Trainer.resume(folder, graph, plan, optimizer=optimizer, begin=True, seed=1) as trainer:
        if world.attempt == 0:
            list(trainer.run(given[:SAVED]))
            trainer.save(folder)
        first = {name: value.tolist() for name, value in trainer.parameters().items()}
        losses = list(trainer.run(rest()))
        last = {name: value.tolist() for name, value in trainer.parameters().items()}
    if world.rank == 0:
        told = {"attempt": world.attempt, "first": first, "losses": losses, "last": last}
        Path(out).write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
