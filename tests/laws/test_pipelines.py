"""Law 1 for pipelines: micro-batches in any order, of any stages, with results computed again, train as one batch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelined_networks import Drawn, batches, drawn, in_stages, perceptron, trained
from thread_ranks import run_on_ranks
from tolerance import TOLERANCE, violations

import maniple as mp
from maniple.models import model
from maniple.operators.operator.operator import Initial
from maniple.operators.plan.plan import OperatorPlan, WeightPlan
from maniple.operators.plan.weight_home import default_homes
from maniple.runtime.control.world import World
from maniple.strategies.simulation.simulation import Simulation
from maniple.zoo.catalogue import ENTRIES


def check(case: Drawn, ranks: int = 2, processors: int = 2) -> None:
    """On every rank, losses and parameters are those of the step that is not cut."""
    whole = run_on_ranks(ranks, lambda world: trained(case, case.whole, world), processors=processors)[0]
    for losses, parameters in run_on_ranks(ranks, lambda world: trained(case, case.plan, world), processors=processors):
        found, wanted = (torch.tensor(given, dtype=torch.float64) for given in (losses, whole[0]))
        faults = violations("loss", found, wanted, TOLERANCE["float64"])
        for name, value in whole[1].items():
            faults += violations(name, parameters[name], value, TOLERANCE["float64"])
        assert not faults, f"{faults}\n{case.said}"


@settings(max_examples=max(10, settings().max_examples // 8))
@given(st.integers(0, 10**6))
def test_any_network_in_any_stages_trains_as_the_whole_batch(seed: int) -> None:
    check(drawn(Random(seed)))


@pytest.mark.parametrize(
    ("order", "lanes", "micro_batches"),
    [
        ("interleaved_1f1b", [[0, 2], [1, 3]], 4),
        ("looped_bfs", [[0, 2], [1, 3]], 3),
        ("zb_h1", [[0], [1], [2], [3]], 5),
        ("zb_h2", [[0], [1], [2], [3]], 8),
        ("v_half", [[0, 3], [1, 2]], 5),
        ("v_zb", [[0, 3], [1, 2]], 8),
        ("0F0 0F1 0I1 0I0 0W0 0W1; 1F1 1F0 1B1 1R0 1B0", [[0], [1]], 2),
    ],
)
def test_every_order_trains_as_the_whole_batch(order: str, lanes: list[list[int]], micro_batches: int) -> None:
    graph = perceptron(8, sum(map(len, lanes)))
    case = in_stages(graph, lanes, order, micro_batches, again=("relu_1",))
    check(case)


@pytest.mark.parametrize("order", ["1f1b", "zb_h1"])
def test_a_loss_that_is_split_by_classes_takes_micro_batches_in_turn(order: str) -> None:
    """Labels that do not count, classes with weights, smoothing: each micro-batch has its share of the mean."""
    g = mp.Graph("weighed")
    x, labels = g.input("x", (7, 5), "float64"), g.input("labels", (7,), "int64")
    weight = g.buffer("importance", (6,), "float64", Initial("uniform", 1.0))
    g.loss(
        g.cross_entropy(g.linear(g.relu(g.linear(x, 5)), 6), labels, weight=weight, ignore_index=2, label_smoothing=0.1)
    )
    case = in_stages(g, [[0], [1]], order, 4)

    def train(plan: mp.Plan, world: World) -> tuple[list[float], dict[str, torch.Tensor]]:
        chance = torch.Generator().manual_seed(3)
        with mp.Trainer(g, plan, optimizer=mp.SGD(lr=0.1), seed=2, world=world) as trainer:
            given = torch.randn(7, 5, generator=chance, dtype=torch.float64), torch.randint(6, (7,), generator=chance)
            return [trainer.step(*given) for _ in range(3)], trainer.parameters()

    name, fused = case.plan.operators[-1]
    split = OperatorPlan(tuple((f, 3 if f == "c" else 1) for f, _ in fused.degrees), (1, 2, 3))
    plan = replace(case.plan, operators=(*case.plan.operators[:-1], (name, split)))
    found, wanted = (run_on_ranks(2, partial(train, each), processors=2)[0] for each in (plan, case.whole))
    assert found[0] == pytest.approx(wanted[0], abs=1e-12)
    assert not [fault for key in wanted[1] for fault in violations(key, found[1][key], wanted[1][key], 1e-12)]


@pytest.mark.parametrize(("name", "order"), [("gpt", "1f1b"), ("lenet", "zb_h1")])
def test_imported_networks_train_as_the_whole_batch(name: str, order: str) -> None:
    """In single precision; of a language model labels are flattened for a mean, which every micro-batch reads whole."""
    graph = model(name, 6, **ENTRIES[name].reduced)
    assert graph.state  # drawn once, for all ranks of this process
    names = [node.name for node in graph.nodes]
    second = {*names[len(names) // 2 :]}
    operators = tuple(
        (node.name, OperatorPlan(tuple((f.name, 1) for f in graph.bound(node).factors), (int(node.name in second),)))
        for node in graph.nodes
    )
    weights = tuple((tensor.name, WeightPlan((1,) * len(tensor.shape), (0,))) for tensor in graph.lasting)
    whole = mp.Plan(graph.fingerprint(), "by hand", operators, weights)
    stages = [[name for name in names if (name in second) == later] for later in (False, True)]
    pipelined = whole.with_pipeline(stages, order=order, micro_batches=4)
    chance = torch.Generator().manual_seed(2)
    batch = {
        tensor.name: torch.randn(tensor.shape, generator=chance)
        if tensor.dtype == "float32"
        else torch.randint(2, tensor.shape, generator=chance)
        for tensor in graph.inputs
    }

    def body(world: World, plan: mp.Plan) -> tuple[list[float], dict[str, torch.Tensor]]:
        with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1), world=world) as trainer:
            return [trainer.step(**batch) for _ in range(3)], trainer.parameters()

    (losses, found), (wanted_losses, wanted) = (
        run_on_ranks(2, partial(body, plan=plan))[0] for plan in (pipelined, whole)
    )
    assert losses == pytest.approx(wanted_losses, abs=1e-5)
    assert not [fault for key in wanted for fault in violations(key, found[key], wanted[key], TOLERANCE["float32"])]


@pytest.mark.simulator
def test_what_is_found_inside_stages_trains_as_the_whole_batch() -> None:
    """Two stages of two processors each, on which slow processors are best shared; dropout, what is computed again."""
    machine = mp.Machine.preset("cpu:2x2")
    slow = tuple(replace(each, flops_per_s=1e6, launch_s=1e-7) for each in machine.processors)
    graph = perceptron(9, 4)
    case = in_stages(graph, [[0], [1]], "1f1b", 4, again=("relu", "relu_2"))
    spread = tuple(
        (name, replace(own, processors=(2 * own.processors[0] + number % 2,)))
        for number, (name, own) in enumerate(case.plan.operators)
    )
    given, asked = replace(case.plan, machine="", operators=spread), replace(machine, processors=slow)
    plan = mp.search(graph, asked, strategy="soap", proposals=60, cores=1, inside=given)
    assert sum(own.points > 1 for _, own in plan.operators) > 2
    assert [own.recompute for _, own in plan.operators] == [own.recompute for _, own in spread]
    check(Drawn(graph, plan, plan.text()))


def test_results_that_are_computed_again_are_so_without_a_pipeline() -> None:
    """One stage, all samples: what is computed again draws the same numbers, and changes nothing."""
    graph = perceptron(8, 4)
    everything = tuple(node.name for node in graph.nodes)
    case = in_stages(graph, [[0, 1], [2, 3]], "sequential", 1, again=everything)
    check(case)
    check(Drawn(graph, replace(case.plan, stages=(), pipeline=None), case.said))


def test_an_evaluation_is_not_cut() -> None:
    """Outputs come of whole batches, of any size, with the parameters that the pipeline trained."""
    graph = perceptron(8, 2)
    case = in_stages(graph, [[0], [1]], "1f1b", 4)
    batch = batches(graph, 2)[0]

    def body(world: World, plan: mp.Plan) -> list[torch.Tensor]:
        with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1), world=world) as trainer:
            trainer.step(**batch)
            return [trainer.evaluate(words=batch["words"][:size])["scores"] for size in (8, 3)]

    found, wanted = (run_on_ranks(2, partial(body, plan=plan))[0] for plan in (case.plan, case.whole))
    assert [len(scores) for scores in found] == [8, 3]
    assert all(torch.allclose(mine, its, atol=1e-12, rtol=0) for mine, its in zip(found, wanted, strict=True))


def test_local_statistics_are_those_of_a_micro_batch() -> None:
    """With two micro-batches what data parallelism over two processors gives; running statistics are assigned once."""
    g = mp.Graph("normed")
    x, labels = g.input("x", (8, 3), "float64"), g.input("labels", (8,), "int64")
    g.loss(g.cross_entropy(g.linear(g.batch_norm(g.linear(x, 4)), 3), labels))
    apart = replace(in_stages(g, [[0]], "sequential", 1).plan, semantics=(("batch_norm", "local_stats"),))
    over_two = tuple(
        (name, OperatorPlan(tuple((f, 2 if f == "b" else 1) for f, _ in own.degrees), (0, 1)))
        for name, own in apart.operators
    )

    def train(plan: mp.Plan) -> tuple[list[float], dict[str, torch.Tensor]]:
        def body(world: World) -> tuple[list[float], dict[str, torch.Tensor]]:
            chance = torch.Generator().manual_seed(2)
            with mp.Trainer(g, plan, optimizer=mp.SGD(lr=0.1), world=world) as trainer:
                losses = []
                for _ in range(3):
                    samples = torch.randn(8, 3, generator=chance, dtype=torch.float64)
                    losses.append(trainer.step(samples, torch.randint(3, (8,), generator=chance)))
                return losses, trainer.state_dict()

        return run_on_ranks(1, body, processors=2)[0]

    losses, state = train(apart.with_pipeline(order="1f1b", micro_batches=2))
    wanted, other = train(replace(apart, operators=over_two, stages=(), pipeline=None))
    assert losses == pytest.approx(wanted, abs=1e-12)
    assert all(torch.allclose(state[name], other[name], atol=1e-12, rtol=0) for name in other)


def test_a_tensor_that_an_operator_has_twice_is_added_to_twice() -> None:
    """Two tasks of one processor, each of which contributes to both uses of a weight: nobody waits in a circle."""

    @mp.operator("b k, k, k -> b k")
    def scaled(x: torch.Tensor, u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return x * u + v

    g = mp.Graph("twice")
    x, y = g.input("x", (8, 6), dtype="float64"), g.input("y", (8,), dtype="int64")
    weight = g.parameter("weight", (6,), dtype="float64")
    g.loss(g.cross_entropy(scaled(g.linear(x, 6, name="linear"), weight, weight), y))
    whole = mp.search(g, mp.Machine.preset("cpu:1"), strategy="data_parallel")
    name = next(node.name for node in g.nodes if node.operator.name == "scaled")
    config = whole.operator(name)
    halves = replace(config, degrees=(("b", 2), *config.degrees[1:]), processors=(0, 0))
    cut = replace(whole, operators=tuple((n, halves if n == name else c) for n, c in whole.operators))
    batch = torch.randn(8, 6, dtype=torch.float64), torch.arange(8) % 6
    found = []
    for plan in (whole, cut.with_pipeline(order="1f1b", micro_batches=2)):
        with mp.Trainer(g, plan, optimizer=mp.SGD(lr=0.1)) as trainer:
            losses = [trainer.step(*batch) for _ in range(3)]
            found.append((losses, trainer.parameters()))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-10)
    for tensor, value in found[0][1].items():
        assert torch.allclose(value, found[1][1][tensor], atol=1e-10, rtol=0.0), tensor


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_micro_batches_of_a_precision_are_as_the_whole_batch_and_as_simulated(precision: str) -> None:
    """Halves cast once for all micro-batches, gradients added up in float32, one scale and one step of it."""
    g = mp.Graph("halves")
    x, y = g.input("x", (8, 6)), g.input("y", (8,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(g.relu(g.linear(x, 10, name="l1"), name="relu"), 5, name="l2"), y, name="loss"))
    batch = torch.linspace(-1.0, 1.0, 48).reshape(8, 6), torch.arange(8) % 5
    optimizer = mp.SGD(lr=0.1, momentum=0.9)
    machine = mp.Machine.preset("cpu:1x2")
    whole = mp.search(g, machine, strategy="data_parallel", semantics={"precision": precision})
    first = replace(whole, operators=tuple((n, only(c, 0 if n in {"l1", "relu"} else 1)) for n, c in whole.operators))
    cut = first.with_pipeline([["l1", "relu"], ["l2", "loss"]], order="1f1b", micro_batches=3)
    found = []
    homes = default_homes(g, first.operators, machine)
    for plan in (replace(first, weights=homes), replace(cut, weights=homes)):
        simulated = Simulation(g, machine, plan, optimizer=optimizer)
        with mp.Trainer(g, plan, optimizer=optimizer, world=World.solo(processors=2, cores=1)) as trainer:
            losses = [trainer.step(*batch) for _ in range(5)]
            assert trainer.bytes()["predicted"] == trainer.bytes()["measured"] == simulated.bytes
            found.append((losses, trainer.parameters()))
    assert found[0][0] == pytest.approx(found[1][0], abs=2.0**-11)
    for tensor, value in found[0][1].items():
        assert torch.allclose(value, found[1][1][tensor], atol=2.0**-11, rtol=0.0), tensor


def only(config: OperatorPlan, processor: int) -> OperatorPlan:
    """A configuration of one task, on a processor."""
    return OperatorPlan(tuple((factor, 1) for factor, _ in config.degrees), (processor,))
