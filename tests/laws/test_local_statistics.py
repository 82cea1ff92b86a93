"""The semantics ``batch_norm=local_stats``: each part of the batch by itself, on however many processors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from thread_ranks import run_on_ranks

import maniple as mp
from maniple.operators.plan.plan import OperatorPlan
from maniple.runtime.control.world import World
from maniple.runtime.machine.world_machine import host_machine

TOLERANCE = 1e-12
BATCH, PARTS, STEPS, SEED = 7, 2, 3, 5
Found = tuple[list[float], dict[str, torch.Tensor]]


def build() -> mp.Graph:
    g = mp.Graph("local")
    x, y = g.input("x", (BATCH, 3, 4), "float64"), g.input("y", (BATCH,), "int64")
    g.loss(g.cross_entropy(g.linear(g.flatten(g.batch_norm(x, momentum=0.3)), 2), y))
    return g


def batches() -> list[dict[str, torch.Tensor]]:
    chance = torch.Generator().manual_seed(0)
    x = [torch.randn(BATCH, 3, 4, generator=chance, dtype=torch.float64) for _ in range(STEPS)]
    return [{"x": value, "y": torch.randint(2, (BATCH,), generator=chance)} for value in x]


def judge() -> Found:
    state = build().state_dict(SEED)
    descent = torch.optim.SGD([v.requires_grad_() for k, v in state.items() if "running" not in k], lr=0.1)
    losses = []
    for batch in batches():
        parts, following = [], [torch.zeros(3, dtype=torch.float64) for _ in range(2)]
        for part in batch["x"].tensor_split(PARTS):
            mean, variance = (state[f"batch_norm.running_{name}"].clone() for name in ("mean", "var"))
            weight, bias = state["batch_norm.weight"], state["batch_norm.bias"]
            parts.append(F.batch_norm(part, mean, variance, weight, bias, training=True, momentum=0.3))
            for total, value in zip(following, (mean, variance), strict=True):
                total.add_(value, alpha=len(part) / BATCH)
        logits = F.linear(torch.cat(parts).flatten(1), state["linear.weight"], state["linear.bias"])
        loss = F.cross_entropy(logits, batch["y"])
        descent.zero_grad()
        loss.backward()
        descent.step()
        state["batch_norm.running_mean"], state["batch_norm.running_var"] = following
        losses.append(loss.item())
    return losses, state


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_part_is_normalized_by_itself(ranks: int) -> None:
    def body(world: World) -> Found:
        graph = build()
        plan = mp.search(graph, host_machine(world), strategy="data_parallel")
        processors = tuple(part % ranks for part in range(PARTS))
        operators = []
        for name, config in plan.operators:
            degrees = tuple((factor, PARTS if factor == "b" else 1) for factor, _ in config.degrees)
            operators.append((name, OperatorPlan(degrees, processors)))
        local = replace(plan, operators=tuple(operators), semantics=(("batch_norm", "local_stats"),))
        assert "semantics: batch_norm=local_stats" in local.explain()
        with mp.Trainer(graph, local, optimizer=mp.SGD(lr=0.1), seed=SEED, world=world) as trainer:
            return [trainer.step(**batch) for batch in batches()], trainer.state_dict()

    losses, state = judge()
    for mine, values in run_on_ranks(ranks, body):
        assert mine == pytest.approx(losses, rel=0, abs=TOLERANCE)
        for key, value in state.items():
            assert torch.allclose(values[key], value, rtol=0, atol=TOLERANCE), key
