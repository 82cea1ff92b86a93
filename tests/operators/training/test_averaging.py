"""Averages of weights: torch's AveragedModel, block by block and under a plan."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import maniple as mp
from maniple.operators.training.averaging import Averaged
from maniple.operators.training.optimizer_text import optimizer_of, plain_optimizer
from maniple.runtime.control.world import World
from maniple.runtime.machine.world_machine import host_machine

BATCH = torch.arange(24, dtype=torch.float64).reshape(8, 3) / 10, torch.tensor([0, 1, 1, 0, 1, 0, 0, 1])


def network() -> mp.Graph:
    graph = mp.Graph("layer")
    x, y = graph.input("x", (8, 3), dtype="float64"), graph.input("y", (8,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(x, 2, name="l"), y))
    return graph


@pytest.mark.parametrize("inner", [mp.SGD(0.3), mp.SGD(0.3, 0.9), mp.optim.AdamW(lr=0.05, clip_norm=0.5)], ids=str)
def test_it_is_the_average_of_torch(inner: mp.optim.SGD | mp.optim.AdamW) -> None:
    """Over twenty steps on two ranks; the parameters are those of the inner optimizer by itself."""

    def body(world: World, *, average: bool) -> tuple[list[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
        plan = mp.search(network(), host_machine(world), strategy="random", seed=2)
        optimizer = mp.optim.averaged(inner, 0.8) if average else inner
        with mp.Trainer(network(), plan, optimizer=optimizer, world=world) as trainer:
            seen = []
            for _ in range(20):
                trainer.step(*BATCH)
                seen.append(trainer.parameters())
            return seen, trainer.optimizer_state()

    (seen, state), _ = mp.testing.run_on_worlds(mp.testing.local_worlds(2), lambda here: body(here, average=True))
    (alone, _), _ = mp.testing.run_on_worlds(mp.testing.local_worlds(2), lambda here: body(here, average=False))
    model = nn.Linear(3, 2, dtype=torch.float64)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    for parameters in seen:
        model.load_state_dict({name.removeprefix("l."): value for name, value in parameters.items()})
        average.update_parameters(model)
    for name, value in average.module.named_parameters():
        assert float((state[f"l.{name}.ema"] - value.detach()).abs().max()) <= 1e-10
        assert float((seen[-1][f"l.{name}"] - alone[-1][f"l.{name}"]).abs().max()) <= 1e-10


def test_it_goes_between_processes_and_refuses_what_is_none() -> None:
    optimizer = mp.optim.averaged(mp.optim.AdamW(groups={"*.bias": {"lr": 0.1}}), 0.9)
    assert optimizer_of(json.loads(json.dumps(plain_optimizer(optimizer)))) == optimizer
    assert optimizer.of("l.bias").arguments()["lr"] == 0.1
    assert optimizer.state_names == ("exp_avg", "exp_avg_sq", "ema")
    for decay in (1.0, -0.1, float("nan")):
        with pytest.raises(mp.RequestError, match="averaged: decay: expected a"):
            mp.optim.averaged(mp.SGD(0.1), decay)
    with pytest.raises(mp.RequestError, match=r"averaged: expected an optimizer of mp.optim that keeps no average yet"):
        Averaged(optimizer)
