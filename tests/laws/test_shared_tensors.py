"""Without a flush, gradients of several parts cross stages: of skips, of splits along sums, at several ages."""

from __future__ import annotations

import pytest
import torch
from chained_stages import BATCH, OPTIMIZERS, WIDTH, Pairs, apart, batches, pairs, staged
from listed_weights import delayed, plain
from thread_ranks import run_on_ranks

import maniple as mp
from maniple.operators.graph.node import Node
from maniple.operators.pipeline_order.version_rule import RULES, lag
from maniple.runtime.control.world import World
from maniple.runtime.machine.machine import Machine
from maniple.strategies.simulation.simulation import Simulation

WITHIN = 1e-10
Values = dict[str, torch.Tensor]
STEPS = 12


def skipping(read: Pairs, value: torch.Tensor) -> torch.Tensor:
    """Each stage adds what the stage before was given: it is read by two stages, and by one of them later."""
    before = value
    for weight, bias in read:
        value, before = torch.relu(value @ weight.T + bias) + before, value
    return value


def skips(stages: int) -> tuple[mp.Graph, list[list[str]]]:
    """The same as a graph, and the operators of each stage."""
    g = mp.Graph("skips")
    h, labels = g.input("x", (BATCH, WIDTH), "float64"), g.input("y", (BATCH,), "int64")
    before, ends = h, []
    for stage in range(stages):
        h, before = g.add(g.relu(g.linear(h, WIDTH)), before), h
        if stage == stages - 1:
            g.loss(g.cross_entropy(h, labels))
        ends.append(len(g.nodes))
    names = [node.name for node in g.nodes]
    return g, [names[first:last] for first, last in zip([0, *ends], ends, strict=False)]


def layers(stages: int) -> tuple[mp.Graph, list[list[str]]]:
    """A chain of layers, where a stage ends with the product."""
    g = mp.Graph("layers")
    h, labels = g.input("x", (BATCH, WIDTH), "float64"), g.input("y", (BATCH,), "int64")
    for _ in range(stages):
        h = g.relu(g.linear(h, WIDTH))
    g.loss(g.cross_entropy(h, labels))
    names = [node.name for node in g.nodes]
    ends = [1 + 2 * stage for stage in range(stages - 1)] + [len(names)]
    return g, [names[first:last] for first, last in zip([0, *ends], ends, strict=False)]


def delays(rule: str, stages: int) -> list[int]:
    """How many updates the weights of each stage are late, by what the rules say of themselves."""
    return [{"stash": lag(stage, stages), "vertical_sync": stages - 1, "2bw": 1}[rule] for stage in range(stages)]


def check(made: tuple[mp.Graph, list[list[str]]], rule: str, ranks: int = 1, split: str = "") -> None:
    """It trains as the formula has it, and what is simulated are the rows that run."""
    graph, stages = made
    width = 2 if split else 1
    given, processors = batches(STEPS), len(stages) * width

    def products(graph: mp.Graph, node: Node) -> str:
        names = [factor.name for factor in graph.bound(node).factors]
        return split if split in names and node.name.startswith("linear") else ""

    plan = staged(graph, stages, rule, width=width, factor=products)

    def body(world: World) -> tuple[Values, list[float], Values, Machine, int]:
        with mp.Trainer(graph, plan, optimizer=OPTIMIZERS["momentum"][0], seed=1, world=world) as trainer:
            first = trainer.parameters()
            losses = list(trainer.run({"x": x, "y": y} for x, y in given))
            return first, losses, trainer.parameters(), trainer.machine, trainer.schedule.total_bytes

    network = skipping if graph.name == "skips" else plain
    for first, losses, last, machine, moved in run_on_ranks(ranks, body, processors=processors // ranks):
        make = OPTIMIZERS["momentum"][1]
        wanted, had = delayed(pairs(first), given, delays(rule, len(stages)), make, network)
        assert losses == pytest.approx(wanted, abs=WITHIN)
        assert apart(pairs(last), [own[-1] for own in had]) < WITHIN
        assert Simulation(graph, machine, plan, optimizer=OPTIMIZERS["momentum"][0]).bytes == moved


@pytest.mark.parametrize("rule", ["stash", "vertical_sync", "2bw"])
def test_a_tensor_that_several_stages_read_gets_the_gradients_of_all(rule: str) -> None:
    check(skips(4), rule)


def test_its_gradients_meet_over_ranks() -> None:
    check(skips(3), "stash", ranks=3)


@pytest.mark.parametrize("rule", ["stash", "2bw"])
@pytest.mark.parametrize("split", ["k", "n"])
def test_what_is_split_along_its_sums_at_the_end_of_a_stage_is_folded_for_a_later_run(rule: str, split: str) -> None:
    """Along `k` a product is of two parts, along `n` the gradient of what it reads."""
    check(layers(3), rule, split=split)


def test_every_rule_that_keeps_versions_is_among_them() -> None:
    assert {name for name, rule in RULES.items() if rule.keeps} == {"stash", "vertical_sync", "2bw"}
