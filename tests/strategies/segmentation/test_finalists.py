"""One clock: pipelines that a partition search found are chosen by the simulator, beside plans without a pipeline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maniple.operators.graph.graph import Graph
from maniple.operators.plan.plan import Plan, Term
from maniple.process.error import RequestError
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.named.data_parallel import DataParallel
from maniple.strategies.segmentation.antichain import Antichain
from maniple.strategies.segmentation.bapipe import BaPipe
from maniple.strategies.segmentation.finalists import TRIED, UNCOUNTED, Finalist, choose, micro_batch_counts, rivals
from maniple.strategies.segmentation.graphpipe import GraphPipe
from maniple.strategies.simulation.simulation import Simulation

pytestmark = pytest.mark.simulator


def layers(count: int, batch: int = 8, width: int = 1024, steps: int = 8) -> Graph:
    """Recurrent layers in a row, whose features cannot be split; with few samples, weights are what moves."""
    g = Graph("layers")
    h = g.input("x", (batch, steps, width))
    for _ in range(count):
        h = g.lstm(h, width, batch_first=True)[0]
    g.loss(g.mse_loss(h, g.input("y", (batch, steps, width))))
    return g


def told(plan: Plan) -> dict[str, Term]:
    return dict(dict(plan.explanation)[""])


def step_s(problem: Problem, plan: Plan) -> float:
    return Simulation(problem.graph, problem.machine, plan).makespan_ns / 1e9


@pytest.mark.parametrize("strategy", [Antichain(), BaPipe(), GraphPipe()], ids=lambda each: each.name)
@pytest.mark.parametrize(("graph", "machine"), [(layers(4), "p100x4"), (layers(2, 64, 32), "cpu:2")])
def test_a_pipeline_that_is_chosen_is_never_slower_than_a_plan_without_one(
    strategy: Antichain | BaPipe | GraphPipe, graph: Graph, machine: str
) -> None:
    """Of few samples on one host a pipeline is chosen, of many and small layers none; and all times are simulated."""
    problem = Problem(graph, Machine.preset(machine))
    plan = strategy.plan(problem)
    table = {term: float(str(value)) for term, value in told(plan).items() if term.startswith(TRIED)}
    assert plan.predicted.step_s == step_s(problem, plan) == min(table.values())
    for rival in rivals(problem, []):
        assert step_s(problem, plan) <= step_s(problem, rival.plan), rival.name
        assert table[TRIED + rival.name] == step_s(problem, rival.plan)
    chosen = graph.batch == 8
    assert (plan.pipeline is not None) == chosen
    assert ("micro-batches" in told(plan)) == chosen


@pytest.mark.parametrize("norm", [False, True])
def test_an_explanation_says_where_micro_batches_were_not_counted_as_they_run(*, norm: bool) -> None:
    """Whatever is chosen: no micro-batch goes through an exact batch norm before all others have come to it."""
    g = Graph("norm" if norm else "none")
    h = g.linear(g.input("x", (8, 64)), 64)
    h = g.relu(g.batch_norm(h) if norm else h)
    g.loss(g.cross_entropy(g.linear(h, 3), g.input("y", (8,), dtype="int64")))
    why = str(told(Antichain(replicate=False).plan(Problem(g, Machine.preset("cpu:2x1")))).get(UNCOUNTED, ""))
    assert ("statistics over the whole batch" in why) == bool(why) == norm


def test_what_is_asked_for_is_kept_and_the_rest_explored() -> None:
    problem = Problem(layers(2, 64, 32), Machine.preset("cpu:2"))
    plan = Antichain().plan(replace(problem, micro_batches=4))
    assert plan.pipeline is not None
    assert plan.pipeline.micro_batches == 4
    orders = {str(term).removeprefix(TRIED).split(",")[0] for term in told(plan) if term.startswith(TRIED)}
    assert {"1f1b", "gpipe"} <= orders
    plan = Antichain().plan(replace(problem, order="zb_h1"))
    assert plan.pipeline is not None
    assert plan.pipeline.order == "zb_h1"
    text = "0F0 0F1 0B1 0B0; 1F1 1F0 1B1 1B0"
    plan = Antichain(stages=2, replicate=False).plan(replace(problem, order=text, micro_batches=2))
    assert plan.pipeline is not None
    assert plan.pipeline.order == text
    with pytest.raises(RequestError, match="expected an order of 2 stages and 2 micro-batches, got one of 1"):
        Antichain(stages=2, replicate=False).plan(replace(problem, order="0F0 0B0 0F1 0B1", micro_batches=2))


def test_micro_batches_are_looked_at_up_to_four_for_each_processor() -> None:
    graph = layers(1, 12, 4)
    assert micro_batch_counts(Problem(graph, Machine.preset("cpu:2"))) == (2, 4, 8)
    assert micro_batch_counts(Problem(graph, Machine.preset("cpu:2"), micro_batches=3)) == (3,)
    assert micro_batch_counts(Problem(graph.with_batch(1), Machine.preset("cpu:2"))) == (1,)


def test_what_cannot_be_faster_is_not_simulated_and_what_cannot_run_is_told() -> None:
    graph, machine = layers(2, 8, 16), Machine.preset("cpu:2")
    problem = Problem(graph, machine)
    whole = DataParallel().plan(problem)
    rival, pipeline = Finalist("whole", whole), whole.with_pipeline(order="1f1b", micro_batches=2)
    bound = step_s(problem, whole)
    plan = choose(problem, "s", [Finalist("slow", pipeline, 0.0, bound)], [rival])
    assert (told(plan)["found by"], told(plan)["pipelines passed over"]) == ("whole", 1)
    assert f"{TRIED}slow" not in told(plan)
    plan = choose(problem, "s", [Finalist("slow", pipeline, 0.0, bound / 2)], [rival])
    assert f"{TRIED}slow" in told(plan)
    wrong = Finalist("wrong", whole.with_pipeline(order="v_zb", micro_batches=2))
    assert "order 'v_zb'" in str(told(choose(problem, "s", [wrong], [rival]))["pipelines refused"])
    with pytest.raises(RequestError, match="order 'v_zb'"):
        choose(problem, "s", [wrong], [])


def test_the_first_of_each_number_of_stages_is_simulated_however_late_it_is_expected() -> None:
    problem = Problem(layers(3, 16, 64), Machine.preset("cpu:3"), order="1f1b", micro_batches=4)
    two, three = (Antichain(stages=count, replicate=False).plan(problem) for count in (2, 3))
    other = replace(two, pipeline=None).with_pipeline(order="gpipe", micro_batches=4)
    found = [Finalist("three", three, 3.0), Finalist("two", two, 1.0), Finalist("other", other, 2.0)]
    plan = choose(problem, "s", found, [], most=1)
    assert {term for term in told(plan) if term.startswith(TRIED)} == {f"{TRIED}two", f"{TRIED}three"}
    assert told(plan)["pipelines passed over"] == 1


def test_a_plan_that_does_not_fit_is_not_chosen() -> None:
    graph, machine = layers(2, 8, 16), Machine.preset("cpu:1")
    small = replace(machine, memories=tuple(replace(each, capacity_bytes=1 << 15) for each in machine.memories))
    whole = DataParallel().plan(Problem(graph, machine))
    with pytest.raises(RequestError, match="does not fit in memory"):
        choose(Problem(graph, small), "s", [], [Finalist("whole", whole)])


def test_a_pipeline_takes_at_least_what_its_busiest_stage_computes() -> None:
    """The bound by which pipelines are passed over, held against the simulator."""
    problem = Problem(layers(3, 16, 64), Machine.preset("cpu:3"), micro_batches=4)
    for strategy in (Antichain(replicate=False), Antichain(replicate=True), GraphPipe()):
        plan = strategy.plan(problem)
        bound_s = float(str(told(plan)["bound_s"]))
        assert bound_s > 0
        assert plan.predicted.step_s is not None
        assert plan.predicted.step_s >= bound_s
