"""Trains a small network under several optimizers, each under a random plan: `optimized.py OUT CASE...`.

Rates change while two steps are under way. Rank 0 writes to OUT, by case: losses, parameters before and after, and the
bytes that were predicted and measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "oracles"))

from trained_optimizers import OPTIONS, STEPS, batches, network, optimizer_by, rate_at

import maniple as mp


def plain(parameters: dict[str, torch.Tensor]) -> dict[str, list[float]]:
    """Parameters as what JSON can hold."""
    return {name: value.tolist() for name, value in parameters.items()}


def main(out: Path, cases: list[int]) -> None:
    """Train under each, and write."""
    torch.set_num_threads(1)
    graph, found = network(), []
    for case in cases:
        optimizer = optimizer_by(*OPTIONS[case])
        plan = mp.search(graph, mp.Machine.detect(), strategy="random", seed=case, optimizer=optimizer)
        with mp.Trainer(graph, plan, optimizer=optimizer) as trainer:
            start = plain(trainer.parameters())

            def given(own: mp.Trainer = trainer) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
                for step, batch in enumerate(batches(STEPS)):
                    own.hyper["lr"] = rate_at(step)
                    yield batch

            losses = list(trainer.run(given()))
            found.append((losses, start, plain(trainer.parameters()), trainer.bytes()))
    if mp.world().rank == 0:
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(case) for case in sys.argv[2:]])
