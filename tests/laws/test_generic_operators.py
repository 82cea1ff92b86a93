"""Law 1 for what operators may be: several results, folds, buffers, random numbers, opaque functions, ties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pytest
import torch
from thread_ranks import run_on_ranks

import maniple as mp
from maniple.operators.operator.operator import Initial
from maniple.operators.operator.random_stream import RandomStream
from maniple.operators.operator.torch_operator import TorchOperator
from maniple.operators.rules.rule import Rule, Shape
from maniple.runtime.control.world import World
from maniple.runtime.machine.world_machine import host_machine

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.operators.operator.operator import TileContext

TOLERANCE = 1e-11
STEPS = 4
SEED = 5
BATCH, FEATURES, HIDDEN = 6, 5, 4
SGD = mp.SGD(lr=0.1, momentum=0.9)


@dataclass(frozen=True, slots=True)
class Halves(TorchOperator):
    """Two products, one of which nobody may use, and the place of the largest of the first."""

    name: ClassVar[str] = "halves"
    flops_per_point: ClassVar[int] = 2

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        return Rule.parse("b k!, n! k! -> b n!, b n!, b")

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        return ("float64", "float64", "int64")

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        x, weight = operands
        assert x is not None
        assert weight is not None
        product = x @ weight.T
        return product.tanh(), product * 3, product.argmax(1)


@dataclass(frozen=True, slots=True)
class Centred(TorchOperator):
    """The product of a tensor and a row, and the sums of its columns over all samples: a fold beside a plain result."""

    name: ClassVar[str] = "centred"

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        return Rule.parse("b n, n -> b n, n")

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        return ("float64", "float64")

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        x, row = operands
        assert x is not None
        assert row is not None
        return x * row, x.pow(2).sum(0)


@dataclass(frozen=True, slots=True)
class Mixed(TorchOperator):
    """A broadcast sum of everything, and the exponential average of the sums: the next value of a buffer."""

    name: ClassVar[str] = "mixed"

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        return Rule.parse("b n, n, 1 n -> b n, 1 n")

    def result_dtypes(self, dtypes: tuple[str | None, ...], where: str) -> tuple[str, ...]:
        return ("float64", "float64")

    detached: ClassVar[tuple[int, ...]] = (1,)

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        x, sums, average = operands
        assert x is not None
        assert sums is not None
        assert average is not None
        # Split over b, the second result folds: each part gives its share.
        share = context.tile.extent("b") / context.extent("b")
        return x + 0.01 * sums + 0.1 * average, share * (0.5 * average + 0.5 * sums.detach())


@dataclass(frozen=True, slots=True)
class Noise(TorchOperator):
    """Multiplies each element by a number of (seed, step, operator, its place in the whole)."""

    name: ClassVar[str] = "noise"
    random: ClassVar[bool] = True

    def rule(self, shapes: tuple[Shape | None, ...]) -> Rule:
        return Rule.parse("b n -> b n")

    def forward(self, context: TileContext, operands: tuple[Tensor | None, ...]) -> Tensor:
        (x,) = operands
        assert x is not None
        if not context.training:
            return x.clone()
        assert context.stream is not None
        seed, step = context.stream.now()
        rows = torch.arange(*context.tile.range("b")).unsqueeze(1)
        columns = torch.arange(*context.tile.range("n"))
        return x * noise(seed, step, context.stream.operator, rows * context.extent("n") + columns)


def noise(seed: int, step: int, operator: int, index: Tensor) -> Tensor:
    return torch.sin(index.double() * 7 + step * 3 + seed + operator % 1000) + 1.5


def double(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.cos() * 2, x.sum(dim=1)


def build() -> mp.Graph:
    g = mp.Graph("kinds")
    x, y = g.input("x", (BATCH, FEATURES), dtype="float64"), g.input("y", (BATCH,), dtype="int64")
    tied = g.parameter("tied", (HIDDEN, FEATURES), "float64", Initial("uniform", 0.5))
    row = g.parameter("row", (HIDDEN,), "float64", Initial("normal", 1.0), requires_grad=False)
    g.buffer("unused", (3,), "int64", Initial("constant", 7))
    average = g.buffer("average", (1, HIDDEN), "float64")
    first, _, best = g.apply(Halves(), (x, tied))
    _, second, _ = g.apply(Halves(), (x, tied), name="again")
    scaled, sums = g.apply(Centred(), (g.add(first, second), row))
    mixed, following = g.apply(Mixed(), (scaled, sums, average))
    g.assign(average, following)
    h, _ = g.call(double, g.append(Noise(), (mixed,)))
    logits = g.linear(h, 3)
    g.loss(g.cross_entropy(logits, y))
    g.output("logits", logits)
    g.output("best", best)
    return g


def batches() -> list[dict[str, Tensor]]:
    chance = torch.Generator().manual_seed(1)
    return [
        {
            "x": torch.randn(BATCH, FEATURES, generator=chance, dtype=torch.float64),
            "y": torch.randint(3, (BATCH,), generator=chance),
        }
        for _ in range(STEPS)
    ]


def judge() -> tuple[list[float], dict[str, Tensor], dict[str, Tensor]]:
    """The same by torch: losses, state, and outputs of the first batch after the last step."""
    stream = RandomStream.of("noise", torch.zeros(2)).operator
    state = build().state_dict(SEED)
    trained = {k: v.requires_grad_() for k, v in state.items() if k in {"tied", "linear.weight", "linear.bias"}}
    descent = torch.optim.SGD(trained.values(), lr=0.1, momentum=0.9)

    def forward(x: Tensor, step: int | None) -> tuple[Tensor, Tensor, Tensor]:
        product = x @ state["tied"].T
        h = product.tanh() + product * 3
        sums = h.pow(2).sum(0)
        mixed = h * state["row"] + 0.01 * sums + 0.1 * state["average"]
        if step is not None:
            index = torch.arange(BATCH * HIDDEN).view(BATCH, HIDDEN)
            mixed = mixed * noise(SEED, step, stream, index)
        logits = torch.nn.functional.linear(mixed.cos() * 2, state["linear.weight"], state["linear.bias"])
        return logits, 0.5 * state["average"] + 0.5 * sums.detach(), product.argmax(1)

    losses = []
    for step, batch in enumerate(batches()):
        descent.zero_grad()
        logits, following, _ = forward(batch["x"], step)
        loss = torch.nn.functional.cross_entropy(logits, batch["y"])
        loss.backward()
        descent.step()
        state["average"] = following
        losses.append(loss.item())
    logits, _, best = forward(batches()[0]["x"], None)
    return losses, {k: v.detach() for k, v in state.items()}, {"logits": logits.detach(), "best": best}


@pytest.mark.parametrize("world", [(1, 1), (1, 3), (2, 1), (2, 2), (3, 1)], ids=lambda w: f"{w[0]}x{w[1]}")
@pytest.mark.parametrize("seed", range(3))
def test_every_kind_of_operator_trains_as_torch_does(world: tuple[int, int], seed: int) -> None:
    ranks, processors = world

    def body(world: World) -> tuple[list[float], dict[str, Tensor], dict[str, Tensor]]:
        g = build()
        plan = mp.search(g, host_machine(world), strategy="random", seed=seed)
        with mp.Trainer(g, plan, optimizer=SGD, seed=SEED, world=world) as trainer:
            losses = [trainer.step(**batch) for batch in batches()]
            return losses, trainer.state_dict(), trainer.evaluate(x=batches()[0]["x"])

    losses, state, outputs = judge()
    for mine, values, found in run_on_ranks(ranks, body, processors=processors):
        assert mine == pytest.approx(losses, rel=0, abs=TOLERANCE)
        assert list(values) == list(state)
        for key, value in state.items():
            assert torch.allclose(values[key], value, rtol=0, atol=TOLERANCE), key
        assert torch.equal(found["best"], outputs["best"])
        assert torch.allclose(found["logits"], outputs["logits"], rtol=0, atol=TOLERANCE)
