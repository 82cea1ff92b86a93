"""A small training that is stopped, moved and gone on with: what it is of, and what must be the same afterwards."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

import maniple as mp
from maniple.runtime.control.world import World
from maniple.runtime.machine.world_machine import host_machine
from maniple.testing import local_worlds, run_on_worlds

OPTIMIZERS: list[Any] = [
    mp.SGD(lr=0.1),
    mp.SGD(lr=0.1, momentum=0.9, dampening=0.3),
    mp.optim.AdamW(lr=0.01, clip_norm=0.5, groups={"*.bias": {"weight_decay": 0.0, "betas": (0.8, 0.9)}}),
    mp.optim.Adam(lr=0.01, amsgrad=True),
    mp.optim.by_torch(torch.optim.RMSprop, lr=0.01, momentum=0.5),
]
WORLDS = [(1, 1), (1, 3), (2, 1), (2, 2), (3, 1), (4, 1)]
"""Ranks, and the processors of each."""


def network() -> mp.Graph:
    """A network whose steps draw numbers, and which has a buffer that each step changes."""
    g = mp.Graph("small")
    x, y = g.input("x", (12, 6), dtype="float64"), g.input("y", (12,), dtype="int64")
    h = g.dropout(g.batch_norm(g.relu(g.linear(x, 10))), 0.3)
    logits = g.linear(h, 5)
    g.loss(g.cross_entropy(logits, y))
    g.output("logits", logits)
    return g


def batch(step: int) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(step)
    x = torch.randn((12, 6), generator=chance, dtype=torch.float64)
    return {"x": x, "y": torch.randint(5, (12,), generator=chance)}


def plan_of(world: World, seed: int) -> mp.Plan:
    return mp.search(network(), host_machine(world), strategy="random", seed=seed)


def new(world: World, optimizer: Any = OPTIMIZERS[0], seed: int = 0) -> mp.Trainer:
    return mp.Trainer(network(), plan_of(world, seed), optimizer=optimizer, seed=2**63 + 7, world=world)


def train(trainer: mp.Trainer, first: int, last: int) -> list[float]:
    return list(trainer.run(batch(step) for step in range(first, last)))


def everything(trainer: mp.Trainer) -> dict[str, torch.Tensor]:
    return {**trainer.state_dict(), **trainer.optimizer_state()}


def assert_same(mine: dict[str, torch.Tensor], its: dict[str, torch.Tensor], bound: float = 0.0) -> None:
    assert mine.keys() == its.keys()
    for name, value in mine.items():
        torch.testing.assert_close(value, its[name], rtol=bound, atol=bound)


@cache
def unbroken(optimizer: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    """What ten steps on one processor give that nothing comes between."""
    with new(World.solo(1, 1), optimizer) as trainer:
        return train(trainer, 0, 10), everything(trainer)


def on_ranks(ranks: int, body: Callable[[World], Any], processors: int = 1, nodes: int | None = None) -> list[Any]:
    return run_on_worlds(local_worlds(ranks, nodes, processors), body)
