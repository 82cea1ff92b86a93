"""Trains a chain of three stages on three ranks without a flush: `flowing.py OUT RULE,... [RANK BATCH]`.

Rank 0 writes losses and parameters under each rule to OUT. With a rank and a number it is killed as it is asked for
that batch; at the end, where there are no more, all that is left is the drain.
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

STAGES, STEPS = 3, 30


def given(doomed: int) -> Iterator[dict[str, torch.Tensor]]:
    """The batches; the process ends itself as one of some number is asked for."""
    for number, (x, y) in enumerate([*batches(STEPS), (None, None)]):
        if number == doomed:
            os.kill(os.getpid(), signal.SIGKILL)
        if x is not None and y is not None:
            yield {"x": x, "y": y}


def main(out: str, rules: str, rank: str = "-1", batch: str = "-1") -> None:
    """Train."""
    torch.set_num_threads(1)
    graph, world, told = chain(STAGES), mp.world(), {}
    pids = world.control.gather(str(os.getpid()).encode())
    if world.rank == 0:
        sys.stdout.write(f"pids {' '.join(pid.decode() for pid in pids)}\n")
        sys.stdout.flush()
    for rule in rules.split(","):
        with mp.Trainer(graph, flowing(graph, STAGES, rule), optimizer=OPTIMIZERS["momentum"][0], seed=1) as trainer:
            first = trainer.parameters()
            losses = list(trainer.run(given(int(batch) if world.rank == int(rank) else -1)))
            told[rule] = {"losses": losses, "first": _listed(first), "last": _listed(trainer.parameters())}
    if world.rank == 0:
        Path(out).write_text(json.dumps(told), encoding="utf-8")


def _listed(parameters: dict[str, torch.Tensor]) -> dict[str, object]:
    return {name: value.tolist() for name, value in parameters.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
