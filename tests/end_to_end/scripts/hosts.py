"""A program for several hosts: trains the digits network, then says losses, bytes and hosts as one line of JSON.

`hosts.py STRATEGY STEPS`
"""

from __future__ import annotations

import json
import sys

import torch

import maniple as mp
from maniple.models import digits_cnn

BATCH = 32

strategy, steps = sys.argv[1], int(sys.argv[2])
graph = digits_cnn(BATCH)
world = mp.world()
plan = mp.search(graph, mp.Machine.detect(), strategy=strategy)
generator = torch.Generator().manual_seed(0)
losses, told = [], []
with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.05)) as trainer:
    for _ in range(steps):
        images = torch.randn(BATCH, 1, 8, 8, generator=generator)
        labels = torch.randint(0, 10, (BATCH,), generator=generator)
        losses.append(trainer.step(images, labels))
        told.append(trainer.bytes())
    hosts = sorted(set(world.hosts))
    ways = [way for way in (world.transport, world.shared) if way is not None]
    parts = world.control.gather(json.dumps([way.total() for way in ways]).encode())
    sent = [sum(found) for found in zip(*map(json.loads, parts), strict=True)]
# One write: under torchrun (`python -u`), print writes a line and its end apart, and two ranks share a line.
sys.stdout.write(json.dumps({"losses": losses, "bytes": told, "hosts": hosts, "sent": sent}) + "\n")
sys.stdout.flush()
