"""Optimizers with options, and the same small network under torch's: what trainings under plans are held against."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional as F

import maniple as mp
from maniple.operators.training.optimizer import AbstractOptimizer

STEPS = 20
BIASES = {"*.bias": {"weight_decay": 0.0, "lr": 0.02}}
DESCENT = {"l1.bias|l2.bias": mp.SGD(lr=0.1, momentum=0.9)}
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    ("SGD", {"lr": 0.1, "momentum": 0.5, "maximize": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "groups": BIASES}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "groups": {"l1.*": {"momentum": 0.0}}}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    ("Adam", {"lr": 0.01, "betas": (0.5, 0.7), "eps": 1e-3, "maximize": True}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True, "maximize": True}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "groups": BIASES, "clip_value": 0.01}),
    ("SGD", {"lr": 0.1, "clip_value": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "clip_norm": 0.1}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.5, "groups": BIASES, "clip_norm": 0.1}),
    ("Adagrad", {"lr": 0.1, "initial_accumulator_value": 0.1}),
    ("AdamW", {"lr": 0.01, "clip_norm": 0.05, "clip_value": 0.01, "groups": BIASES}),
    ("Muon", {"lr": 0.02, "clip_value": 0.02, "groups": {"*.bias": mp.optim.AdamW(lr=0.01)}}),
    ("Muon", {"lr": 0.02, "groups": {"l2.weight": {"adjust_lr_fn": "match_rms_adamw", "nesterov": False}, **DESCENT}}),
    ("AdamW", {"lr": 0.01, "clip_norm": 0.05, "groups": {"l1.weight": mp.optim.Muon(momentum=0.8), **BIASES}}),
]


def optimizer_by(kind: str, options: dict[str, Any]) -> AbstractOptimizer:
    found: AbstractOptimizer
    if hasattr(mp.optim, kind):
        found = getattr(mp.optim, kind)(**options)
    else:
        found = mp.optim.by_torch(getattr(torch.optim, kind), **options)
    return found


def network(batch: int = 12) -> mp.Graph:
    graph = mp.Graph("two layers")
    x, y = graph.input("x", (batch, 6), dtype="float64"), graph.input("y", (batch,), dtype="int64")
    hidden = graph.relu(graph.linear(x, 10, name="l1"))
    graph.loss(graph.cross_entropy(graph.linear(hidden, 5, name="l2"), y))
    return graph


def batches(count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    chance = torch.Generator().manual_seed(1)
    for _ in range(count):
        drawn = torch.randn(12, 6, generator=chance, dtype=torch.float64)
        yield drawn, torch.randint(5, (12,), generator=chance)


class Reference:
    """The same network in plain torch under torch's optimizer.

    Args:
        start: the parameters.
        kind: the optimizer.
        options: its options, with groups as ours take them.
    """

    def __init__(self, start: dict[str, torch.Tensor], kind: str, options: dict[str, Any]) -> None:
        self.parameters = {name: value.clone().requires_grad_() for name, value in start.items()}
        self.own = {name: value for name, value in options.items() if name not in {"groups", "clip_norm", "clip_value"}}
        self.clip_norm, self.clip_value = options.get("clip_norm"), options.get("clip_value")
        patterns: dict[str, Any] = options.get("groups", {})
        model = mp.optim.SGD(0.1, groups={pattern: {} for pattern in patterns})
        rows: list[list[torch.Tensor]] = [[] for _ in range(model.rows[0])]
        for name, value in self.parameters.items():
            rows[model.row_of(name)].append(value)
        groups, self.optimizers = [{"params": rows[0]}] if rows[0] else [], []
        for row, own in zip(rows[1:], patterns.values(), strict=True):
            if isinstance(own, AbstractOptimizer):
                numbers: dict[str, Any] = {**own.arguments()}
                self.optimizers.append(getattr(torch.optim, type(own).__name__)(row, **numbers))
            else:
                groups.append({"params": row, **own})
        self.optimizers.append(getattr(torch.optim, kind)(groups, **self.own))

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Those of all optimizers."""
        return [group for each in self.optimizers for group in each.param_groups]

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
        given = self.parameters
        for value in given.values():
            value.grad = None
        hidden = F.relu(F.linear(x, given["l1.weight"], given["l1.bias"]))
        loss = F.cross_entropy(F.linear(hidden, given["l2.weight"], given["l2.bias"]), y)
        loss.backward()
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(given.values(), self.clip_norm)
        if self.clip_value is not None:
            torch.nn.utils.clip_grad_value_(given.values(), self.clip_value)
        for each in self.optimizers:
            each.step()
        return loss.item()


def rate_at(step: int) -> float:
    """A rate that is another in every step."""
    return 0.05 / (1 + step % 7)
