"""The antichain and BaPipe strategies: their plans as tables, legal everywhere, and run as they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from maniple.models import model
from maniple.operators.graph.graph import Graph
from maniple.operators.plan.plan import Plan
from maniple.process.error import RequestError
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.launch import Launch
from maniple.strategies.cost_model.cost_model import Column
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.pipeline.machine_levels import flat, levels
from maniple.strategies.pipeline.operator_costs import cost_graph
from maniple.strategies.pipeline.problem import SegmentationProblem
from maniple.strategies.pipeline.stage_costs import Assumptions
from maniple.strategies.segmentation import antichain
from maniple.strategies.segmentation.antichain import Antichain
from maniple.strategies.segmentation.bapipe import BaPipe
from maniple.strategies.segmentation.gpipe import GPipe
from maniple.strategies.segmentation.graphpipe import GraphPipe
from maniple.strategies.segmentation.segment import segment
from maniple.strategies.segmentation.stage_plan import staged
from maniple.zoo.catalogue import entry

MACHINES = ("cpu:1", "cpu:3", "cpu:2x2")
IN_TURN: dict[str, Any] = {"order": "1f1b", "micro_batches": 8}
Strategy = Antichain | BaPipe | GPipe | GraphPipe


def test_the_plan_for_two_processors(digits: Graph) -> None:
    plan = Antichain().plan(Problem(digits, Machine.preset("cpu:2x1"), **IN_TURN))
    assert [f"{name:13} {split:5} {processors}" for name, split, _, processors in plan.table()] == [
        "conv2d        whole 0",
        "relu          whole 0",
        "conv2d_1      whole 0",
        "relu_1        whole 1",
        "max_pool2d    whole 1",
        "flatten       whole 1",
        "linear        whole 1",
        "relu_2        whole 1",
        "linear_1      whole 1",
        "cross_entropy whole 1",
    ]
    assert [len(stage.operators) for stage in plan.stages] == [3, 7]
    whole = dict(dict(plan.explanation)[""])
    assert (whole["pipeline order"], whole["micro-batches"], whole["exact"]) == ("1f1b", 8, True)
    assert dict(dict(plan.explanation)["relu_1"])["stage"] == 1


def test_replicas_share_the_samples(digits: Graph) -> None:
    plan = Antichain(replicate=True).plan(Problem(digits, Machine.preset("cpu:3"), **IN_TURN))
    # Synchronising the linear layers' weights costs more than two processors save there.
    assert {plan.operator(name).split() for name in ("conv2d", "relu", "conv2d_1", "relu_1")} == {"b=2"}
    assert plan.operator("linear").split() == "whole"
    assert plan.processors_used() == (0, 1, 2)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("strategy", [Antichain(), BaPipe(), GPipe(), GraphPipe()], ids=lambda each: each.name)
def test_every_plan_is_legal_and_comes_out_the_same_twice(
    machine: str, strategy: Strategy, digits: Graph, tmp_path: Path
) -> None:
    preset = Machine.preset(machine)
    for graph in (digits.with_batch(4), digits.with_batch(1)):
        plan = strategy.plan(Problem(graph, preset))
        plan.validate(graph, preset)
        assert graph.batch > 1 or plan == strategy.plan(Problem(graph, preset))
        assert plan.strategy == strategy.name
        plan.save(tmp_path / "plan.json")
        assert Plan.load(tmp_path / "plan.json") == plan


@pytest.mark.parametrize("strategy", [Antichain(replicate=True), BaPipe(), GraphPipe()], ids=lambda each: each.name)
def test_the_plan_trains_as_one_processor_does(strategy: Strategy, digits: Graph) -> None:
    import maniple as mp

    single = mp.search(digits, Machine.preset("cpu:1"), strategy="data_parallel")
    plan = strategy.plan(Problem(digits, Machine.preset("cpu:3"), micro_batches=3))
    assert len(plan.processors_used()) > 1
    assert plan.pipeline is not None
    x, y = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 10
    losses = []
    for chosen in (single, plan):
        with mp.Trainer(digits, chosen, optimizer=mp.SGD(lr=0.1, momentum=0.9)) as trainer:
            losses.append([trainer.step(x=x, y=y) for _ in range(3)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_fewer_stages_and_a_memory_limit(digits: Graph) -> None:
    machine = Machine.preset("cpu:4")
    asked = Problem(digits, machine, **IN_TURN)
    assert len(Antichain(stages=2, replicate=False).plan(asked).stages) == 2
    assert len(Antichain(replicate=False).plan(asked).stages) > 2
    with pytest.raises(RequestError, match="memory"):
        Antichain(memory_bytes=10.0).plan(asked)
    with pytest.raises(RequestError, match="memory"):
        BaPipe(memory_bytes=10.0).plan(asked)
    for strategy in (Antichain(), BaPipe(), GraphPipe()):
        with pytest.raises(RequestError, match="'pipedream' has no flush"):
            strategy.plan(Problem(digits, machine, order="pipedream", micro_batches=2))
    with pytest.raises(RequestError, match="has stages take turns as 'gpipe', got '1f1b'"):
        GPipe().plan(asked)


class LastIsSlow:
    """A cost model of whole seconds."""

    def task_ns(self, launch: Launch) -> Column:
        slow = launch.name.startswith("linear_1.")
        return np.full(len(launch.points), 10**9 if slow else 10**7, dtype=np.int64)

    def source(self, launch: Launch, point: int) -> str:
        return f"{launch.name} {point}"


def test_searches_that_take_long_are_announced_once(
    digits: Graph, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine.cpu(2)
    plan = Antichain().plan(Problem(digits, machine))
    assert not capsys.readouterr().err
    monkeypatch.setattr(antichain, "LONG_S", 0.0)
    assert Antichain().plan(Problem(digits, machine)) == plan
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("antichain: 1 of ")
    assert Antichain().plan(Problem(digits, machine, order="1f1b", micro_batches=4)).stages
    assert " of 2 partition searches " in capsys.readouterr().err


def test_another_cost_model_moves_the_cut(digits: Graph) -> None:
    plan = Antichain(replicate=False, times=LastIsSlow()).plan(Problem(digits, Machine.preset("cpu:2"), **IN_TURN))
    assert "linear_1" in plan.stages[1].operators
    assert "linear" in plan.stages[0].operators


def test_bapipe_says_what_it_chose(digits: Graph) -> None:
    plan = BaPipe().plan(Problem(digits, Machine.preset("cpu:2x1"), micro_batches=4))
    whole = dict(dict(plan.explanation)[""])
    assert whole["variation"] in {"1f1b-sno", "1f1b-so", "gpipe", "gpipe-o"}
    times = [value for term, value in whole.items() if term.startswith("step_s of ")]
    assert len(times) > 1
    assert times == sorted(times)
    assert whole[f"step_s of {whole['found by']}"] == times[0] == plan.predicted.step_s


def test_the_costs_of_operators(digits: Graph) -> None:
    machine = Machine.preset("cpu:1")
    graph = cost_graph(digits, machine)
    assert [node.id for node in graph.nodes] == [node.name for node in digits.nodes]
    nodes = {node.id: node for node in graph.nodes}
    conv = nodes["conv2d_1"]
    # 64 x 16 x 8 x 8 results of 8 x 3 x 3 products each, at half of 50 GFLOP/s; a bias besides.
    assert 2 * 64 * 16 * 64 * 72 / 25e9 <= conv.forward_s < 1.1 * 2 * 64 * 16 * 64 * 72 / 25e9
    assert conv.backward_s > 1.9 * conv.forward_s
    assert conv.activation_bytes == 64 * 16 * 8 * 8 * 4
    assert conv.parameter_bytes == (16 * 8 * 3 * 3 + 16) * 4
    # A ReLU keeps its result for its own backward and its reader's; a flatten nothing of its own that is not read.
    assert nodes["relu"].stored_bytes == nodes["relu"].activation_bytes
    assert conv.forward_start_s == machine.processor(0).launch_s
    assert conv.backward_start_s == pytest.approx(2 * machine.processor(0).launch_s)
    assert len(graph.edges) == 9


def test_a_micro_batch_costs_what_a_graph_of_its_size_does(digits: Graph) -> None:
    """Starts do not shrink, everything else does but for the weights' bytes, which every micro-batch reads."""
    machine = Machine.preset("p100x4")
    whole, part = (cost_graph(graph, machine) for graph in (digits, digits.with_batch(16)))
    for big, small in zip(whole.nodes, part.nodes, strict=True):
        assert small.forward_start_s == big.forward_start_s
        predicted = (big.forward_s - big.forward_start_s) / 4 + big.forward_start_s
        # At most the 46 kB of the largest weight, read three times over.
        assert predicted <= small.forward_s + 1e-9 <= predicted + 2e-9 + 3 * 46e3 / (0.7 * 732e9)


def test_what_the_loss_does_not_need_runs_beside_an_operator() -> None:
    graph = model("resnet18", batch=4, **entry("resnet18").reduced)
    machine = Machine.preset("cpu:4x1")
    costs = cost_graph(graph, machine)
    beside = {node.id: node.beside for node in costs.nodes if node.beside}
    assert len(beside) == 20
    assert beside["stem.1"] == ("stem.1.add",)
    assert len(costs.nodes) + 20 == len(graph.nodes)
    asked = SegmentationProblem(
        costs, (flat(machine, 4),), False, None, "latency", Assumptions(order="gpipe", micro_batches=4)
    )
    plan = staged(Problem(graph, machine), "antichain", asked, segment(asked))
    plan.validate(graph, machine)
    homes = dict(plan.operators)
    assert {homes[name].processors for names in beside.values() for name in names} > {(0,)}
    assert all(homes[name].processors == homes[node].processors for node, names in beside.items() for name in names)
    assert {name for stage in plan.stages for name in stage.operators} == {node.name for node in graph.nodes}


def test_a_shared_weight_counts_once() -> None:
    g = Graph()
    x, y = g.input("x", (4, 5)), g.input("y", (4,), dtype="int64")
    weight, bias = g.parameter("weight", (5, 5)), g.parameter("bias", (5,))
    first = g.linear(x, 5, weight=weight, bias=bias, name="first")
    g.loss(g.cross_entropy(g.linear(first, 5, bias=False, weight=weight), y))
    sizes = [node.parameter_bytes for node in cost_graph(g, Machine.preset("cpu:1")).nodes]
    assert sizes == [(25 + 5) * 4, 0, 0]


def test_the_levels_of_a_machine() -> None:
    assert [(level.members, level.bandwidth) for level in levels(Machine.preset("cpu:4"))] == [(4, float("inf"))]
    machine = Machine.preset("cpu:2x3")
    assert [(level.members, level.bandwidth) for level in levels(machine)] == [(3, float("inf")), (2, 1e9)]
    pair = Machine.cpu(1, ranks=4, nodes=2)
    assert [(level.members, level.bandwidth) for level in levels(pair)] == [(2, 2e9), (2, 1e9)]
    assert (flat(pair, 3).members, flat(pair, 3).bandwidth) == (3, 1e9)
    assert [level.members for level in levels(Machine.preset("cpu:1"))] == [1]
    uneven = Machine.cpu(1, ranks=3, nodes=3)
    memories = tuple(
        type(memory)(memory.id, memory.rank, min(memory.host, 1), memory.capacity_bytes, memory.bandwidth)
        for memory in uneven.memories
    )
    mixed = Machine("uneven", uneven.hosts[:2], memories, uneven.processors)
    assert [(level.members, level.bandwidth) for level in levels(mixed)] == [(3, 1e9)]
