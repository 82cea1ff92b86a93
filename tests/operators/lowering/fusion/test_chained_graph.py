"""Chained graphs: what a plan maps alike is one operator, with the same values under any plan, and the same rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maniple as mp
from maniple.operators.graph.graph import Graph
from maniple.operators.lowering.fusion.chain import Chain
from maniple.operators.lowering.fusion.chained_graph import chain_of, chained
from maniple.operators.lowering.recomputation import recomputed
from maniple.operators.rules.configuration import OperatorPlan
from maniple.process import torch_internals
from maniple.strategies.simulation.simulation import Simulation

SGD = mp.SGD(lr=0.1, momentum=0.9)


class Layer(nn.Module):
    """A perceptron behind a norm and beside a skip, whose activation is written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(width), nn.Linear(width, 6), nn.Linear(6, width)

    def forward(self, x: Tensor) -> Tensor:
        z = self.wide(self.norm(x))
        return x + torch.relu(self.narrow(0.5 * z * (1 + torch.tanh(0.8 * (z + 0.045 * z**3)))))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(4), Layer(4)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def module() -> Network:
    torch.manual_seed(0)
    return Network().double()


@cache
def graph() -> Graph:
    return mp.from_torch(module(), (torch.randn(4, 3, 4, dtype=torch.float64),))


def whole() -> mp.Plan:
    return mp.search(graph(), mp.Machine.cpu(1), strategy="data_parallel")


def batch(seed: int) -> Tensor:
    return torch.randn(4, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch would compile is called as it is: a second a function less."""

    def called(made: Any, examples: object, cores: int) -> Callable[..., object]:
        del examples, cores
        return made  # type: ignore[no-any-return]

    monkeypatch.setattr(torch_internals, "compiled_by_inductor", called)
    monkeypatch.setattr("maniple.operators.recording.inductor_tape._COMPILED", {})


def chains(found: Graph) -> dict[str, Chain]:
    return {node.name: node.operator for node in found.nodes if isinstance(node.operator, Chain)}


def test_neighbours_that_are_mapped_alike_are_one_operator() -> None:
    """The skip of one layer is with the norm of the next, for one reads what the other gives.

    chain                       reads                               gives
    pow ... mul_3               z and 0.5 z                         what narrow reads
    relu + add + norm           narrow, x, norm's weight and bias   the skip, for the next one, and the normed
    """
    made, plan = chained(graph(), whole())
    assert list(chains(made)) == [
        "layers.0.pow+layers.0.mul_1+layers.0.add+layers.0.mul_2+layers.0.tanh+layers.0.add_1+layers.0.mul_3",
        "layers.0.relu+layers.0.add_2+layers.1.norm",
        "layers.1.pow+layers.1.mul_1+layers.1.add+layers.1.mul_2+layers.1.tanh+layers.1.add_1+layers.1.mul_3",
        "layers.1.relu+layers.1.add_2+square",
    ]
    skip = chains(made)["layers.0.relu+layers.0.add_2+layers.1.norm"]
    assert (skip.text, skip.gives) == ("b s c!, b s c!, c!, c! -> b s c!, b s c!", (1, 2))
    assert [item.dimensions for item in skip.kept] == ["b s 1", "b s 1"]
    assert set(dict(plan.operators)) == {node.name for node in made.nodes}
    assert [tensor.name for tensor in made.lasting] == [tensor.name for tensor in graph().lasting]


def test_what_lives_or_is_split_otherwise_is_apart() -> None:
    plan = mp.search(graph(), mp.Machine.cpu(2), strategy="data_parallel")
    add, norm = "layers.0.add_2", "layers.1.norm"

    def of(name: str, config: OperatorPlan) -> str:
        return chain_of(graph(), replace(plan, operators=tuple((dict(plan.operators) | {name: config}).items())), norm)

    alike = plan.operator(add)
    assert of(add, alike) == f"layers.0.relu+{add}+{norm}"
    assert "otherwise" in of(norm, replace(plan.operator(norm), processors=(1, 0)))
    assert "otherwise" in of(norm, replace(plan.operator(norm), degrees=(("b", 1), ("s", 2), ("c", 1))))
    assert "otherwise" in of(norm, replace(plan.operator(norm), recompute=True))
    assert "no link" in chain_of(graph(), plan, "layers.0.wide")


def test_a_split_of_what_a_norm_exchanges_stays_apart() -> None:
    plan = mp.search(graph(), mp.Machine.cpu(2), strategy="data_parallel")
    split = OperatorPlan((("b", 1), ("s", 1), ("c", 2)), (0, 1))
    names = ("layers.0.relu", "layers.0.add_2", "layers.1.norm")
    other = replace(plan, operators=tuple((dict(plan.operators) | dict.fromkeys(names, split)).items()))
    made, _ = chained(graph(), other)
    assert "layers.0.relu+layers.0.add_2" in chains(made)
    assert "otherwise" in chain_of(graph(), other, "layers.1.norm")


def trained(plan: mp.Plan, seed: int, *, compiled: bool) -> tuple[list[float], dict[str, Tensor], int]:
    with mp.Trainer(graph(), plan, optimizer=SGD, compile=compiled) as trainer:
        losses = [trainer.step(x=batch(seed + step)) for step in range(2)]
        return losses, trainer.state_dict(), len(trainer.schedule)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("strategy", "seed"), [("data_parallel", 0), ("random", 4)])
def test_a_plan_changes_no_result(strategy: str, seed: int) -> None:
    """Law 1, under splits that chain all, some and few operators."""
    plan = mp.search(graph(), mp.Machine.cpu(2), strategy=strategy, seed=seed)
    apart, expected, _ = trained(plan, seed, compiled=False)
    losses, found, _ = trained(plan, seed, compiled=True)
    assert losses == pytest.approx(apart, rel=0, abs=1e-12)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("interpreted")
def test_rows_are_fewer_and_those_that_are_simulated() -> None:
    """The names and tasks of a run are those of a simulation of the graph and plan that chaining gives."""
    plan, machine = whole(), mp.Machine.cpu(1)
    made, chained_plan = chained(graph(), plan)
    rows = len(Simulation(graph(), machine, plan, optimizer=SGD).ledger.sequence)
    simulated = Simulation(made, machine, chained_plan.for_graph(made), optimizer=SGD)
    fewer = len(simulated.ledger.sequence)
    assert (rows, fewer) == (70, 38)
    with mp.Trainer(graph(), plan, optimizer=SGD, compile=True) as trainer:
        assert len(trainer.schedule) == fewer
        tasks = [launch.name for launch in trainer.schedule.launches]
    assert sorted(tasks) == sorted(launch.name for launch in simulated._table.launches.values())
    assert not any(".pow." in name for name in tasks)


def test_what_is_computed_again_is_of_one_operand() -> None:
    """Of the written-out activation all but its end; of the skip the relu, whose sum with another is a result."""
    made, _ = chained(graph(), whole())
    again = recomputed(made)
    assert "aten.tanh.default" in again["layers.0.pow+" + "+".join(f"layers.0.{n}" for n in LINKS)]
    assert again["layers.0.relu+layers.0.add_2+layers.1.norm"] == ("aten.relu.default",)


LINKS = ("mul_1", "add", "mul_2", "tanh", "add_1", "mul_3")


@pytest.mark.usefixtures("interpreted")
def test_evaluations_and_smaller_batches_are_chained_too() -> None:
    with mp.Trainer(graph(), whole(), optimizer=SGD, compile=True) as trainer:
        first = trainer.step(x=batch(0)[:3])
    reference = module()
    assert first == pytest.approx(reference(batch(0)[:3]).item(), abs=1e-12)
