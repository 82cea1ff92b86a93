"""Strategies without a flush: what they cut, what they count, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, permutations
from math import inf
from pathlib import Path
from random import Random

import pytest
from chained_stages import OPTIMIZERS, batches, chain, listed

import maniple as mp
from maniple.cli import main
from maniple.models import model
from maniple.operators.lowering.flow.lives import Lives
from maniple.operators.lowering.precision import apply_semantics
from maniple.operators.pipeline_order.version_rule import RULES, predicted
from maniple.operators.plan.pipeline_plan import stages_of
from maniple.operators.plan.version_semantics import version_names, version_rule, weight_copies
from maniple.process.error import RequestError
from maniple.runtime.machine.machine import Machine
from maniple.strategies.flow.flow_plan import flow_assumptions
from maniple.strategies.flow.pipedream import PipeDream
from maniple.strategies.flow.spectrain import SpecTrain
from maniple.strategies.interface.placement import complete, whole
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.pipeline.cost_graph import CostGraph, CostNode
from maniple.strategies.pipeline.machine_levels import flat
from maniple.strategies.pipeline.operator_costs import cost_graph
from maniple.strategies.pipeline.problem import SegmentationProblem
from maniple.strategies.pipeline.stage_costs import Assumptions
from maniple.strategies.pipeline.stage_unit import without_parting
from maniple.strategies.segmentation.segment import segment
from maniple.strategies.simulation.simulation import Simulation

pytestmark = pytest.mark.simulator
P100S = Machine.preset("p100x4")


def residual(blocks: int) -> mp.Graph:
    """Blocks of two layers and a skip around them."""
    g = mp.Graph("residual")
    x, labels = g.input("x", (8, 16)), g.input("labels", (8,), "int64")
    h = g.linear(x, 16)
    for _ in range(blocks):
        h = g.relu(g.add(g.linear(g.relu(g.linear(h, 16)), 16), h))
    g.loss(g.cross_entropy(g.linear(h, 4), labels))
    return g


def units(graph: mp.Graph) -> list[list[str]]:
    found = without_parting(graph, cost_graph(graph, P100S))
    return [[node.id, *node.beside] for node in found.nodes]


def test_a_skip_may_cross_stages_and_a_weight_may_not() -> None:
    assert units(residual(1)) == [["linear"], ["linear_1"], ["relu"], ["linear_2"], ["add"], ["relu_1"], ["linear_3"],
                                  ["cross_entropy"]]  # fmt: skip
    assert units(tied()) == [["embedding"], ["linear", "relu", "linear_1"], ["cross_entropy"]]


def tied() -> mp.Graph:
    """A weight that two layers read, with a layer between."""
    g = mp.Graph("tied")
    x, labels = g.input("x", (8,), "int64"), g.input("labels", (8,), "int64")
    table = g.parameter("table", (4, 4))
    h = g.relu(g.linear(g.embedding(x, 8, 4), 4, False, weight=table))
    g.loss(g.cross_entropy(g.linear(h, 4, False, weight=table), labels))
    return g


def test_costs_of_units_are_the_sums_and_what_leaves_them_is_sent() -> None:
    graph = tied()
    before, after = cost_graph(graph, P100S), without_parting(graph, cost_graph(graph, P100S))
    for name in ("forward_s", "backward_s", "parameter_bytes", "stored_bytes"):
        assert sum(getattr(n, name) for n in after.nodes) == pytest.approx(sum(getattr(n, name) for n in before.nodes))
    block = after.nodes[1]
    assert (block.id, block.activation_bytes) == ("linear", 8 * 4 * 4)


@pytest.mark.parametrize("seed", range(20))
def test_any_cut_between_units_can_run(seed: int) -> None:
    """Drawn residual and plain networks: stages of units that follow each other are lowered, and read no circle."""
    chance = Random(seed)
    g = mp.Graph("drawn")
    x, labels = g.input("x", (8, 6)), g.input("labels", (8,), "int64")
    values = [g.linear(x, 6)]
    for _ in range(chance.randint(3, 7)):
        one, other = chance.choice(values[-3:]), chance.choice(values[-3:])
        kind = chance.choice(("relu", "linear", "add"))
        values.append(g.relu(one) if kind == "relu" else g.linear(one, 6) if kind == "linear" else g.add(one, other))
    g.loss(g.cross_entropy(g.linear(values[-1], 4), labels))
    found = without_parting(g, cost_graph(g, P100S))
    if len(found.nodes) < 2:
        return
    plan = PipeDream().plan(Problem(g, P100S, weights=chance.choice(version_names())))
    assert len(plan.stages) > 1
    plan.validate(g, P100S)
    assert Simulation(g, P100S, plan).makespan_ns > 0


@pytest.mark.parametrize("rule", version_names())
def test_the_search_counts_the_versions_that_run(rule: str) -> None:
    """Of straight pipelines, stage by stage: what the memory of a partition holds is what is read at runtime."""
    graph = chain(4, 16, 32)
    plan = SpecTrain().plan(Problem(graph, P100S, weights="spectrain"))
    stages, found = stages_of(plan.stages, [node.name for node in graph.nodes]), version_rule({"weights": rule})
    assert found is not None
    lives, parts = Lives(graph, stages, found), 8 if found.adds else 1
    for stage in range(4):
        ages = (found.forward(stage, 4), found.backward(stage, 4))
        copies = 1 + max(ages) + any(lives.delay(stage, kind) for kind in ("forward", "backward"))
        assert weight_copies(found, stage, 4) == copies
        given = flow_assumptions(found, parts)
        assert given.versions(3 - stage, 1, stage) == copies
        assert given.in_flight(3 - stage, 1) == 4 - stage
        asked = SegmentationProblem(cost_graph(graph, P100S), (flat(P100S, 4),), assumptions=given)
        assert asked.holding(3 - stage, 1) == (copies + given.gradients + given.optimizer, (4 - stage) / parts)


@pytest.mark.parametrize(("rule", "cut"), [("latest", [(0, 1), (2, 3)]), ("stash", [(0,), (1, 2, 3)])])
def test_what_is_stashed_counts_in_memory(rule: str, cut: list[tuple[int, ...]]) -> None:
    """Weights, gradient and momentum of 50 bytes are 150, and a second version makes 200: it does not fit."""
    sizes = zip("abcd", (10, 40, 10, 10), strict=True)
    nodes = [CostNode(name, "", 1.0, 1.0, 1, size) for name, size in sizes]
    costs = CostGraph.in_order("four", nodes, [("a", "b"), ("b", "c"), ("c", "d")])
    level = (flat(Machine.preset("p100x2"), 2),)
    asked = SegmentationProblem(costs, level, False, 185.0, "throughput", flow_assumptions(RULES[rule]))
    assert [stage.nodes for stage in segment(asked).stages] == cut


def test_pipedream_gives_stages_replicas() -> None:
    """Three processors and one, the least slowest stage where synchronising adds to work, take longer as simulated."""
    plan = mp.search(model("vgg16", batch=64), P100S, strategy="pipedream", semantics={"weights": "stash"})
    told = dict(dict(plan.explanation)[""])
    assert told["processors of stages"] == "2 2"
    assert dict(plan.semantics) == {"weights": "stash"}
    assert plan.pipeline is not None
    assert (plan.pipeline.order, plan.pipeline.micro_batches) == ("asynchronous", 1)


def test_2bw_is_searched_for_with_its_micro_batches_and_trains(capsys: pytest.CaptureFixture[str]) -> None:
    """`maniple search --semantics weights=2bw`, and the plan that it gives, beside plain torch."""
    graph, given = chain(3, 8), batches(12, 8)
    plan = mp.search(graph, Machine.preset("cpu:3"), strategy="pipedream", semantics={"weights": "2bw"})
    assert plan.pipeline is not None
    assert plan.pipeline.micro_batches >= len(plan.stages) > 1
    assert dict(plan.semantics) == {"weights": "2bw"}
    with mp.Trainer(graph, plan, optimizer=OPTIMIZERS["momentum"][0], seed=1) as trainer:
        first = trainer.parameters()
        losses = list(trainer.run({"x": x, "y": y} for x, y in given))
    assert losses == pytest.approx(listed(first, given, "2bw", "momentum")[0], abs=1e-10)
    asked = ["mlp", "--machine", "cpu:3", "--strategy", "pipedream", "--micro-batches", "4", "--batch", "16"]
    with pytest.raises(SystemExit) as left:
        main(["search", *asked, "--semantics", "weights=2bw"])
    assert not left.value.code
    assert "4 micro-batches" in capsys.readouterr().out


def test_batch_norms_are_planned_with_local_statistics() -> None:
    asked = {"weights": "spectrain", "batch_norm": "local_stats"}
    plan = mp.search(model("digits_cnn", batch=16), P100S, strategy="spectrain", semantics=asked)
    assert dict(plan.semantics) == asked
    assert len(plan.stages) > 1


def test_what_a_search_found_trains_as_lists_of_weights_do() -> None:
    graph, given = chain(3), batches(12)
    plan = mp.search(graph, Machine.preset("cpu:3"), strategy="spectrain", semantics={"weights": "spectrain"})
    with mp.Trainer(graph, plan, optimizer=OPTIMIZERS["momentum"][0], seed=1) as trainer:
        first = trainer.parameters()
        losses = list(trainer.run({"x": x, "y": y} for x, y in given))
    assert [len(stage.operators) for stage in plan.stages] == [2, 2, 3]
    assert losses == pytest.approx(listed(first, given, "spectrain", "momentum")[0], abs=1e-10)


def unequal(fast: int) -> Machine:
    """Four ranks, of which one is four times as fast as the others."""
    four = Machine.preset("cpu:4x1")
    speeds = tuple(
        replace(each, flops_per_s=4e9 if each.id == fast else 1e9, launch_s=1e-7) for each in four.processors
    )
    return replace(four, processors=speeds)


def seven() -> mp.Graph:
    """Seven equal layers, wide beside their samples."""
    g = mp.Graph("seven layers")
    h = g.input("x", (16, 256))
    for _ in range(7):
        h = g.linear(h, 256, bias=False)
    g.loss(g.mse_loss(h, g.input("y", (16, 256))))
    return g


@pytest.mark.parametrize("strategy", [PipeDream(), SpecTrain()], ids=lambda each: each.name)
@pytest.mark.parametrize("fast", [0, 3])
def test_the_fast_processor_has_the_large_stage_wherever_it_is(strategy: PipeDream | SpecTrain, fast: int) -> None:
    """What is found is what is simulated, and takes less than what is found where all are alike."""
    g = seven()
    plan = strategy.plan(Problem(g, unequal(fast), weights="spectrain"))
    plan.validate(g, unequal(fast))
    on = [plan.operator(name).processors for name, _ in plan.operators if name.startswith("linear")]
    assert on.count((fast,)) >= 4
    assert strategy.name == "pipedream" or len(plan.stages) == 4
    found = Simulation(g, unequal(fast), plan).makespan_ns
    assert plan.predicted.step_s == pytest.approx(found / 1e9)
    even = strategy.plan(Problem(g, Machine.preset("cpu:4x1"), weights="spectrain"))
    assert found < 0.75 * Simulation(g, unequal(fast), replace(even, machine="")).makespan_ns


def test_no_stages_on_any_choice_of_unequal_processors_are_faster() -> None:
    """Every cut of three layers into two or three stages, each on a processor of its own."""
    machine = unequal(2)
    three = replace(machine, processors=machine.processors[:3], memories=machine.memories[:3])
    g = mp.Graph("three layers")
    h = g.input("x", (16, 64))
    for width in (256, 128, 64):
        h = g.linear(h, width, bias=False)
    g.loss(g.mse_loss(h, g.input("y", (16, 64))))
    names, best = [node.name for node in g.nodes], inf
    for count in (2, 3):
        for ends in combinations(range(1, len(names)), count - 1):
            stages = [names[first:last] for first, last in pairwise((0, *ends, len(names)))]
            for on in permutations(range(3), count):
                homes = {name: on[place] for place, own in enumerate(stages) for name in own}
                placed = tuple((node.name, whole(g, node, homes[node.name])) for node in g.nodes)
                plan = complete(Problem(g, three), "drawn", placed)
                made = plan.with_pipeline(stages, order="asynchronous", micro_batches=1)
                flowing = replace(made, semantics=(("weights", "stash"),))
                best = min(best, Simulation(g, three, flowing).makespan_ns / 1e9)
    found = PipeDream().plan(Problem(g, three, weights="stash")).predicted.step_s
    assert found is not None
    assert found <= 1.02 * best


def test_a_small_memory_has_the_stage_that_it_has_room_for() -> None:
    """It is the last, which keeps one version: three layers of 256 KiB, with gradients and momentum 2304 KiB.

    As the first, with two versions, it had room for two layers.
    """
    g = seven()
    two = Machine.preset("cpu:2x1")
    for small in (0, 1):
        rooms = tuple(
            replace(each, capacity_bytes=(2400 << 10) if each.id == small else 1 << 30) for each in two.memories
        )
        machine = replace(two, memories=rooms)
        plan = PipeDream().plan(Problem(g, machine, weights="stash"))
        plan.validate(g, machine)
        on = [plan.operator(name).processors[0] for name, _ in plan.operators if name.startswith("linear")]
        assert on == [1 - small] * 4 + [small] * 3
        held = Simulation(g, machine, plan).allocated_bytes()
        assert held is not None
        assert held[small] <= 2400 << 10


@pytest.mark.parametrize(
    ("strategy", "asked", "told"),
    [
        ("pipedream", {}, "say which weights are read by semantics weights=RULE, one of 2bw, latest, nesterov"),
        ("spectrain", {"weights": "stash"}, r"expected semantics weights=nesterov\|spectrain, got 'stash'"),
        ("soap", {"weights": "stash"}, "ask pipedream or spectrain"),
        ("pipedream", {"weights": "stsh"}, "got 'stsh'; did you mean 'stash'"),
    ],
)
def test_what_cannot_be_asked(strategy: str, asked: dict[str, str], told: str) -> None:
    with pytest.raises(RequestError, match=told):
        mp.search(chain(3), Machine.preset("cpu:3"), strategy=strategy, semantics=asked, proposals=1)


def test_an_order_with_a_flush_is_refused() -> None:
    with pytest.raises(RequestError, match="order 'asynchronous' and 1 micro-batch; got '1f1b' and 4"):
        PipeDream().plan(Problem(chain(3), P100S, weights="stash", order="1f1b", micro_batches=4))


def test_one_operator_cannot_be_parted() -> None:
    g = mp.Graph("one")
    labels = g.input("labels", (8,), "int64")
    g.loss(g.cross_entropy(g.parameter("scores", (8, 4)), labels))
    with pytest.raises(RequestError, match="expected operators that stages can part; all of one"):
        PipeDream().plan(Problem(g, P100S, weights="stash"))


def test_the_published_orders_have_no_rule() -> None:
    with pytest.raises(RequestError, match="--strategy pipedream --semantics weights=RULE"):
        Assumptions(order="asynchronous")
    with pytest.raises(RequestError, match="the published orders are 1f1b"):
        Assumptions(order="1f1b", rule=predicted("spectrain"))


def test_a_graph_with_local_statistics_has_a_fingerprint_and_a_file(tmp_path: Path) -> None:
    graph = apply_semantics(model("digits_cnn", batch=16), {"batch_norm": "local_stats"})
    graph.save(tmp_path / "graph.json")
    assert mp.Graph.load(tmp_path / "graph.json").fingerprint() == graph.fingerprint()
