"""Trains the digits network on this run's machine and prints, on rank 0, what it was and what came of it."""

from __future__ import annotations

import hashlib
import json

import torch

import maniple as mp
from maniple.models import digits_cnn

BATCH, STEPS = 16, 4


def main() -> None:
    """Train, and print a line of JSON."""
    graph, machine = digits_cnn(BATCH), mp.Machine.detect()
    plan = mp.search(graph, machine, strategy="data_parallel")
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(BATCH, 1, 8, 8, generator=generator), torch.arange(BATCH) % 10
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.05, momentum=0.9)) as trainer:
        losses = [trainer.step(images, labels) for _ in range(STEPS)]
        moved, parameters = trainer.bytes(), trainer.parameters()
        plans = sorted(set(trainer.schedule.plans.values()))
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in parameters.values())).hexdigest()
    if mp.world().rank == 0:
        kinds = [processor.kind for processor in machine.processors]
        told = {
            "machine": machine.name,
            "kinds": kinds,
            "losses": losses,
            "parameters": digest,
            "plans": plans,
            **moved,
        }
        print(json.dumps(told))  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main()
