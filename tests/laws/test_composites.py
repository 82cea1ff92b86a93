"""Law 1 for composites: what needs an exchange inside an operator when it is split gives what torch gives whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from thread_ranks import run_on_ranks

import maniple as mp
from maniple.operators.library.norms.rectified_batch_norm import RectifiedBatchNorm
from maniple.operators.operator.builder import Tensor
from maniple.operators.plan.plan import OperatorPlan
from maniple.operators.rewriting.rectified_norms import rectify_norms
from maniple.runtime.control.world import World
from maniple.runtime.machine.world_machine import host_machine

Values = Mapping[str, torch.Tensor]
Trained = tuple[list[float], dict[str, torch.Tensor], torch.Tensor]

TOLERANCE = 1e-10
STEPS = 3
SEED = 5
BATCH = 6
CLASSES = 5
SGD = mp.SGD(lr=0.05, momentum=0.9)


@dataclass(frozen=True)
class Network:
    """A network in both forms.

    Args:
        build: its graph, whose output is ``logits``.
        forward: logits from the state, the samples and whether it is a step; changes running statistics in place.
        loss: of logits and labels.
        features: the shape of one sample.
    """

    build: Callable[[], mp.Graph]
    forward: Callable[[Values, torch.Tensor, bool], torch.Tensor]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    features: tuple[int, ...]

    def batches(self) -> list[dict[str, torch.Tensor]]:
        chance = torch.Generator().manual_seed(1)
        found = []
        for size in (BATCH, BATCH, BATCH - 2):
            x = torch.randn(size, *self.features, generator=chance, dtype=torch.float64)
            y = torch.randint(CLASSES, (size,), generator=chance)
            y[1] = -100
            found.append({"x": x, "y": y})
        return found


def start(name: str, *features: int) -> tuple[mp.Graph, Tensor, Tensor]:
    g = mp.Graph(name)
    return g, g.input("x", (BATCH, *features), dtype="float64"), g.input("y", (BATCH,), dtype="int64")


def finish(g: mp.Graph, logits: object, loss: object) -> mp.Graph:
    g.loss(loss)  # type: ignore[arg-type]
    g.output("logits", logits)  # type: ignore[arg-type]
    return g


def images() -> mp.Graph:
    g, x, y = start("images", 2, 4, 3)
    h = g.relu(g.batch_norm(g.conv2d(x, 4, 3, padding=1), momentum=0.3))
    h = g.batch_norm(g.flatten(h), affine=False)
    logits = g.linear(h, CLASSES)
    return finish(g, logits, g.cross_entropy(logits, y))


def images_by_torch(p: Values, x: torch.Tensor, training: bool) -> torch.Tensor:
    h = F.conv2d(x, p["conv2d.weight"], p["conv2d.bias"], padding=1)
    mean, variance = p["batch_norm.running_mean"], p["batch_norm.running_var"]
    h = F.batch_norm(h, mean, variance, p["batch_norm.weight"], p["batch_norm.bias"], training, 0.3)
    mean, variance = p["batch_norm_1.running_mean"], p["batch_norm_1.running_var"]
    h = F.batch_norm(h.relu().flatten(1), mean, variance, training=training)
    return F.linear(h, p["linear.weight"], p["linear.bias"])


def residual() -> mp.Graph:
    """Batch norms with a ReLU behind them, one with a skip between, each of which is one operator."""
    g, x, y = start("residual", 2, 4, 3)
    h = g.relu(g.batch_norm(g.conv2d(x, 4, 3, padding=1), momentum=0.3))
    h = g.relu(g.add(h, g.batch_norm(g.conv2d(h, 4, 3, padding=1, bias=False), affine=False)))
    logits = g.linear(g.flatten(h), CLASSES)
    rectified = rectify_norms(finish(g, logits, g.cross_entropy(logits, y)))
    assert sum(isinstance(node.operator, RectifiedBatchNorm) for node in rectified.nodes) == 2
    return rectified


def residual_by_torch(p: Values, x: torch.Tensor, training: bool) -> torch.Tensor:
    h = F.conv2d(x, p["conv2d.weight"], p["conv2d.bias"], padding=1)
    mean, variance = p["batch_norm.running_mean"], p["batch_norm.running_var"]
    h = F.batch_norm(h, mean, variance, p["batch_norm.weight"], p["batch_norm.bias"], training, 0.3).relu()
    mean, variance = p["batch_norm_1.running_mean"], p["batch_norm_1.running_var"]
    inside = F.conv2d(h, p["conv2d_1.weight"], padding=1)
    h = (F.batch_norm(inside, mean, variance, training=training) + h).relu().flatten(1)
    return F.linear(h, p["linear.weight"], p["linear.bias"])


def sequences() -> mp.Graph:
    g, x, y = start("sequences", 4, 6)
    h = g.layer_norm(x, 6)
    h = g.softmax(g.linear(h, 6), dim=-1)
    h = g.log_softmax(g.layer_norm(h, (4, 6), elementwise_affine=False), dim=1)
    logits = g.linear(g.flatten(h), CLASSES)
    return finish(g, logits, g.cross_entropy(logits, y, label_smoothing=0.2))


def sequences_by_torch(p: Values, x: torch.Tensor, training: bool) -> torch.Tensor:
    del training
    h = F.layer_norm(x, (6,), p["layer_norm.weight"], p["layer_norm.bias"])
    h = F.linear(h, p["linear.weight"], p["linear.bias"]).softmax(-1)
    h = F.layer_norm(h, (4, 6)).log_softmax(1).flatten(1)
    return F.linear(h, p["linear_1.weight"], p["linear_1.bias"])


NETWORKS = {
    "images": Network(images, images_by_torch, F.cross_entropy, (2, 4, 3)),
    "residual": Network(residual, residual_by_torch, F.cross_entropy, (2, 4, 3)),
    "sequences": Network(
        sequences, sequences_by_torch, lambda x, y: F.cross_entropy(x, y, label_smoothing=0.2), (4, 6)
    ),
}


def judge(network: Network) -> Trained:
    """Losses, state and outputs by torch."""
    state = network.build().state_dict(SEED)
    trained = [value.requires_grad_() for key, value in state.items() if "running" not in key]
    descent = torch.optim.SGD(trained, lr=0.05, momentum=0.9)
    losses = []
    for batch in network.batches():
        descent.zero_grad()
        loss = network.loss(network.forward(state, batch["x"], True), batch["y"])
        loss.backward()
        descent.step()
        losses.append(loss.item())
    with torch.no_grad():
        return losses, state, network.forward(state, network.batches()[0]["x"], False)


def train(network: Network, world: World, plan: mp.Plan) -> Trained:
    with mp.Trainer(network.build(), plan, optimizer=SGD, seed=SEED, world=world) as trainer:
        losses = [trainer.step(**batch) for batch in network.batches()]
        return losses, trainer.state_dict(), trainer.evaluate(x=network.batches()[0]["x"])["logits"]


def check(network: Network, found: list[Trained]) -> None:
    losses, state, logits = judge(network)
    for mine, values, outputs in found:
        assert mine == pytest.approx(losses, rel=0, abs=TOLERANCE)
        assert list(values) == list(state)
        for key, value in state.items():
            assert torch.allclose(values[key], value, rtol=0, atol=TOLERANCE), key
        assert torch.allclose(outputs, logits, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("world", [(1, 1), (1, 3), (2, 2), (3, 1)], ids=lambda w: f"{w[0]}x{w[1]}")
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("strategy", ["data_parallel", "random"])
def test_networks_of_composites_train_as_torch_does(strategy: str, name: str, world: tuple[int, int]) -> None:
    network = NETWORKS[name]

    def body(world: World) -> Trained:
        return train(network, world, mp.search(network.build(), host_machine(world), strategy=strategy, seed=1))

    check(network, run_on_ranks(world[0], body, processors=world[1]))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_exchanged_factor_in_three_parts_trains_as_torch_does(name: str) -> None:
    network = NETWORKS[name]

    def body(world: World) -> Trained:
        graph = network.build()
        plan = mp.search(graph, host_machine(world), strategy="data_parallel")
        operators = []
        for node in graph.nodes:
            factors = graph.bound(node).factors
            exchanged = [f.name for f in factors if f.name in node.operator.exchanges() and f.highest_degree > 2]
            degrees = tuple((f.name, 3 if f.name in exchanged[-1:] else 1) for f in factors)
            points = 3 if exchanged else 1
            operators.append((node.name, OperatorPlan(degrees, tuple(range(points)))))
        return train(network, world, replace(plan, operators=tuple(operators)))

    check(network, run_on_ranks(3, body))


class Ruled(torch.nn.Module):
    """Classes of which a mask rules some out, as it does with actions, or with a sample's likeness to itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 6)

    def forward(self, x: torch.Tensor, ruled: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = self.layer(x).masked_fill(ruled, -torch.inf)
        return F.cross_entropy(logits, y) + logits.softmax(1).square().sum()


@pytest.mark.parametrize("parts", [2, 3])
def test_a_part_of_the_classes_that_is_ruled_out_changes_nothing(parts: int) -> None:
    module, y = Ruled().double(), torch.tensor([0, 5, 2, 3, 1])
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ruled = (torch.arange(6) - y[:, None]).abs() > 1
    graph = mp.from_torch(module, (x, ruled, y))
    plan = mp.search(graph, mp.Machine.cpu(parts), strategy="data_parallel")
    operators = []
    for node in graph.nodes:
        cut = {"c": parts} if node.operator.exchanges() else {}
        degrees = tuple((factor.name, cut.get(factor.name, 1)) for factor in graph.bound(node).factors)
        operators.append((node.name, OperatorPlan(degrees, tuple(range(parts if cut else 1)))))
    with mp.Trainer(graph, replace(plan, operators=tuple(operators)), optimizer=SGD) as trainer:
        found = [trainer.step(x, ruled, y) for _ in range(STEPS)]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    for loss in found:
        optimizer.zero_grad()
        expected = module(x, ruled, y)
        expected.backward()
        optimizer.step()
        assert loss == pytest.approx(expected.item(), rel=TOLERANCE)
