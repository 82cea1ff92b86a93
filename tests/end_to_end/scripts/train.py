"""Trains the digits network on random batches; `fault RANK KIND` makes one rank misbehave after a few steps."""

from __future__ import annotations

import os
import sys

import torch

import maniple as mp
from maniple.models import digits_cnn

BATCH = 32


def main(steps: int, fault_rank: int, kind: str) -> None:
    graph = digits_cnn(BATCH)
    plan = mp.search(graph, mp.Machine.detect(), strategy="data_parallel")
    world = mp.world()
    at_fault = world.rank == fault_rank
    generator = torch.Generator().manual_seed(7 if at_fault and kind == "other-batch" else 0)
    images = torch.randn(BATCH, 1, 8, 8, generator=generator)
    labels = torch.randint(0, 10, (BATCH,), generator=generator)
    pids = [int.from_bytes(part, "big") for part in world.control.gather(os.getpid().to_bytes(4, "big"))]
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.01)) as trainer:
        for step in range(steps):
            if step == 5 and kind == "bad-label":
                labels = labels + 100  # on every rank: a batch that only one rank has is found before it is used
            if at_fault and step == 5:
                if kind == "raise":
                    raise ValueError("a bug in the user's program")
                if kind == "evaluate":
                    trainer.evaluate(x=images)
                if kind == "leave":
                    return
            trainer.step(images, labels)
            if step == 3:
                print("pids", *pids, flush=True)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
