"""Networks to train twice: as a graph under a plan, and with plain torch as the judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F

import maniple as mp
from maniple.models import digits_cnn

Parameters = Mapping[str, torch.Tensor]

STEPS = 10
SHORT = 8
"""Steps where runs of ours are held against each other to the bit: each program, of both batch sizes, runs again."""
OPTIMIZER = mp.SGD(lr=0.05, momentum=0.9, weight_decay=0.01)
SEED = 3


@dataclass(frozen=True)
class Network:
    """A network in both forms.

    Args:
        name: what tests call it.
        build: its graph for a batch size and dtype.
        forward: its logits from parameters, by name, and samples.
        features: the shape of one sample.
        classes: the number of logits.
        batch: samples of a step.
        last: samples of the smaller batches.
    """

    name: str
    build: Callable[[int, str], mp.Graph]
    forward: Callable[[Parameters, torch.Tensor], torch.Tensor]
    features: tuple[int, ...]
    classes: int
    batch: int
    last: int

    def graph(self, dtype: str) -> mp.Graph:
        """The graph at the network's batch size."""
        return self.build(self.batch, dtype)

    def samples(self, seed: int, size: int, dtype: str) -> dict[str, torch.Tensor]:
        """A batch drawn from a seed; the values do not depend on the dtype, beyond rounding."""
        chance = torch.Generator().manual_seed(seed)
        x = torch.randn((size, *self.features), generator=chance, dtype=torch.float64)
        y = torch.randint(self.classes, (size,), generator=chance)
        return {"x": x.to(getattr(torch, dtype)), "y": y}

    def batches(self, dtype: str, steps: int = STEPS) -> list[dict[str, torch.Tensor]]:
        """The batches of the steps: two epochs, the last batch of each smaller."""
        sizes = ([self.batch] * (steps // 2 - 1) + [self.last]) * 2
        return [self.samples(step, size, dtype) for step, size in enumerate(sizes)]


def _digits(p: Parameters, x: torch.Tensor) -> torch.Tensor:
    h = F.conv2d(x, p["conv2d.weight"], p["conv2d.bias"], padding=1).relu()
    h = F.conv2d(h, p["conv2d_1.weight"], p["conv2d_1.bias"], padding=1).relu()
    h = F.max_pool2d(h, 2).flatten(1)
    h = F.linear(h, p["linear.weight"], p["linear.bias"]).relu()
    return F.linear(h, p["linear_1.weight"], p["linear_1.bias"])


def _mlp_graph(batch: int, dtype: str) -> mp.Graph:
    g = mp.Graph("odd_mlp")
    x, y = g.input("x", (batch, 7), dtype), g.input("y", (batch,), dtype="int64")
    h = g.relu(g.linear(x, 13))
    h = g.relu(g.linear(h, 11, bias=False))
    logits = g.linear(h, 5)
    g.loss(g.cross_entropy(logits, y))
    g.output("logits", logits)
    return g


def _mlp(p: Parameters, x: torch.Tensor) -> torch.Tensor:
    h = F.linear(x, p["linear.weight"], p["linear.bias"]).relu()
    h = F.linear(h, p["linear_1.weight"]).relu()
    return F.linear(h, p["linear_2.weight"], p["linear_2.bias"])


def _residual_graph(batch: int, dtype: str) -> mp.Graph:
    g = mp.Graph("residual")
    x, y = g.input("x", (batch, 3, 9, 7), dtype), g.input("y", (batch,), dtype="int64")
    h = g.relu(g.conv2d(x, 5, kernel_size=3, stride=2, padding=1))  # (5, 5, 4)
    h = g.relu(g.add(g.conv2d(h, 5, kernel_size=3, padding=1), h))
    h = g.avg_pool2d(h, kernel_size=(3, 2), stride=(2, 1), padding=(1, 0))  # (5, 3, 3)
    h = g.reshape(h, (batch, 5, 9))
    h = g.relu(g.linear(h, 9))
    h = g.linear(h, 9, weight=g.handle("linear.weight"))
    logits = g.linear(g.flatten(h), 3)
    g.loss(g.cross_entropy(logits, y))
    g.output("logits", logits)
    g.output("shared", h)
    return g


def _residual(p: Parameters, x: torch.Tensor) -> torch.Tensor:
    h = F.conv2d(x, p["conv2d.weight"], p["conv2d.bias"], stride=2, padding=1).relu()
    h = (F.conv2d(h, p["conv2d_1.weight"], p["conv2d_1.bias"], padding=1) + h).relu()
    h = F.avg_pool2d(h, (3, 2), stride=(2, 1), padding=(1, 0))
    h = F.linear(h.reshape(-1, 5, 9), p["linear.weight"], p["linear.bias"]).relu()
    h = F.linear(h, p["linear.weight"], p["linear_1.bias"]).flatten(1)
    return F.linear(h, p["linear_2.weight"], p["linear_2.bias"])


def _mlp_network(batch: int, last: int) -> Network:
    return Network(f"mlp of batch {batch}", _mlp_graph, _mlp, (7,), 5, batch, last)


NETWORKS = {
    "digits": Network("digits", digits_cnn, _digits, (1, 8, 8), 10, 24, 5),
    "mlp24": _mlp_network(24, 7),
    "mlp13": _mlp_network(13, 1),
    "mlp7": _mlp_network(7, 3),
    "residual": Network("residual", _residual_graph, _residual, (3, 9, 7), 3, 7, 2),
}


@dataclass(frozen=True)
class Training:
    """What some steps came to.

    Args:
        start: the parameters before the first step.
        losses: one per step.
        parameters: after the last step.
        logits: of a whole batch and of a smaller one, after the last step.
        moved: (predicted, measured) bytes, of the first, the last, and a further step.
    """

    start: dict[str, torch.Tensor]
    losses: tuple[float, ...]
    parameters: dict[str, torch.Tensor]
    logits: tuple[torch.Tensor, torch.Tensor]
    moved: tuple[tuple[int, int], ...] = ()


def trained(network: Network, dtype: str, plan: mp.Plan, world: object, steps: int = STEPS) -> Training:
    """Train under a plan, on this rank of a world."""
    with mp.Trainer(network.graph(dtype), plan, optimizer=OPTIMIZER, seed=SEED, world=world) as trainer:  # type: ignore[arg-type]
        start = trainer.parameters()
        moved = []
        losses = []
        for batch in network.batches(dtype, steps):
            losses.append(trainer.step(**batch))
            found = trainer.bytes()
            moved.append((found["predicted"], found["measured"]))
        parameters = trainer.parameters()
        x = network.samples(STEPS, network.batch, dtype)["x"]
        logits = trainer.evaluate(x=x)["logits"], trainer.evaluate(x=x[: network.last])["logits"]
        return Training(start, tuple(losses), parameters, logits, tuple(moved))


@cache
def judged(name: str, dtype: str, steps: int = STEPS) -> Training:
    """Train with plain torch, from the parameters that one processor starts with."""
    network = NETWORKS[name]
    graph = network.graph(dtype)
    plan = mp.search(graph, mp.Machine.cpu(1), strategy="data_parallel")
    with mp.Trainer(graph, plan, optimizer=OPTIMIZER, seed=SEED) as trainer:
        start = trainer.parameters()
    mine = {key: value.clone().requires_grad_() for key, value in start.items()}
    descent = torch.optim.SGD(
        mine.values(), lr=OPTIMIZER.lr, momentum=OPTIMIZER.momentum, weight_decay=OPTIMIZER.weight_decay
    )
    losses = []
    for batch in network.batches(dtype, steps):
        descent.zero_grad()
        loss = F.cross_entropy(network.forward(mine, batch["x"]), batch["y"])
        loss.backward()
        descent.step()
        losses.append(loss.item())
    x = network.samples(STEPS, network.batch, dtype)["x"]
    with torch.no_grad():
        logits = network.forward(mine, x), network.forward(mine, x[: network.last])
    return Training(start, tuple(losses), {key: value.detach() for key, value in mine.items()}, logits)
