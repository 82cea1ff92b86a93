"""Rules of versions in a plan: what is refused, by its key, with what was expected."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from chained_stages import chain, flowing

import maniple as mp
from maniple.operators.operator.operator import Initial
from maniple.operators.plan.plan import OperatorPlan, WeightPlan
from maniple.operators.plan.version_semantics import version_names
from maniple.process.error import RequestError

MACHINE = mp.Machine.preset("cpu:4")


def refused(plan: mp.Plan, graph: mp.Graph, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        plan.validate(graph, MACHINE)


def test_every_rule_has_its_name() -> None:
    assert version_names() == ("2bw", "latest", "nesterov", "spectrain", "stash", "vertical_sync")
    graph = chain(2)
    for name in version_names():
        flowing(graph, 2, name).validate(graph, MACHINE)


def test_a_rule_and_the_order_come_together() -> None:
    graph = chain(2)
    plan = flowing(graph, 2, "stash")
    refused(replace(plan, semantics=()), graph, "semantics.weights: missing; order 'asynchronous' has no flush")
    refused(replace(plan, semantics=(("weights", "stahs"),)), graph, "got 'stahs'; did you mean 'stash'")
    refused(replace(plan, pipeline=None), graph, "stash is a rule of order 'asynchronous'; got no pipeline")
    flush = plan.with_pipeline(order="1f1b", micro_batches=2)
    refused(flush, graph, "stash is a rule of order 'asynchronous'; got order '1f1b', which has a flush")
    several = plan.with_pipeline(order="asynchronous", micro_batches=2)
    refused(several, graph, "pipeline.micro_batches: expected 1 micro-batch beside semantics.weights stash")
    early = plan.with_pipeline(order="asynchronous_early", micro_batches=1)
    refused(early, graph, "pipeline.order: expected 'asynchronous' beside semantics.weights stash")
    few = flowing(chain(3), 3, "2bw", parts=2)
    refused(
        few, chain(3), "pipeline.micro_batches: expected at least 3 beside semantics.weights 2bw, one for each stage"
    )
    halves = replace(plan, semantics=(("precision", "bf16"), ("weights", "stash")))
    refused(halves, graph, "semantics.precision: expected float32 beside semantics.weights; got bf16")
    apart = chain(2)
    apart.enter_autocast({"relu": "bfloat16"})
    own = "semantics.weights: expected a graph in float32; 'chain' runs 'relu' under autocast of its own"
    refused(replace(plan, graph=apart.fingerprint()), apart, own)
    again = tuple((name, replace(own, recompute=name == "relu")) for name, own in plan.operators)
    refused(replace(plan, operators=again), graph, "operators.relu.recompute: expected false beside semantics.weights")


def test_one_stage_has_no_versions() -> None:
    graph = chain(2)
    plan = mp.search(graph, mp.Machine.preset("cpu:1"), strategy="data_parallel")
    plan = replace(plan.with_pipeline(order="asynchronous", micro_batches=1), semantics=(("weights", "latest"),))
    refused(plan, graph, "semantics.weights: expected at least 2 stages, for one stage has no versions")


def test_exact_batch_norm_is_refused() -> None:
    graph = mp.Graph("normed")
    x, y = graph.input("x", (4, 5)), graph.input("y", (4,), "int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.batch_norm(graph.linear(x, 5)), 5), y))
    names = [node.name for node in graph.nodes]
    operators = tuple(
        (n.name, OperatorPlan(tuple((f.name, 1) for f in graph.bound(n).factors), (int(n.name in names[2:]),)))
        for n in graph.nodes
    )
    weights = tuple((t.name, WeightPlan((1,) * len(t.shape), (0,))) for t in graph.lasting)
    plan = mp.Plan(graph.fingerprint(), "by hand", operators, weights)
    plan = plan.with_pipeline([names[:2], names[2:]], order="asynchronous", micro_batches=1)
    plan = replace(plan, semantics=(("weights", "stash"),))
    refused(plan, graph, "semantics.batch_norm: expected local_stats beside semantics.weights: batch_norm has running")
    replace(plan, semantics=(("batch_norm", "local_stats"), ("weights", "stash"))).validate(graph, MACHINE)


def trains(graph: mp.Graph, plan: mp.Plan, optimizer: mp.SGD) -> None:
    with mp.Trainer(graph, plan, optimizer=optimizer):
        pass


def test_what_needs_all_gradients_or_says_nothing_of_them_is_refused() -> None:
    graph = chain(2)
    with pytest.raises(RequestError, match=r"semantics\.weights: expected an optimizer whose updates wait"):
        trains(graph, flowing(graph, 2, "stash"), mp.SGD(lr=0.1, momentum=0.9, clip_norm=1.0))
    with pytest.raises(RequestError, match=r"semantics\.weights: expected an optimizer that gathers gradients"):
        trains(graph, flowing(graph, 2, "spectrain"), mp.SGD(lr=0.1))


def test_fewer_samples_than_stages_are_refused() -> None:
    graph = chain(3)
    with mp.Trainer(graph, flowing(graph, 3, "2bw"), optimizer=mp.SGD(lr=0.1)) as trainer:
        given = {"x": torch.zeros(2, 5, dtype=torch.float64), "y": torch.zeros(2, dtype=torch.int64)}
        with pytest.raises(RequestError, match="batch: expected at least 3 samples, a micro-batch for each stage"):
            trainer.step(**given)


def test_a_weight_of_two_stages_is_refused() -> None:
    graph = mp.Graph("tied")
    x, y = graph.input("x", (4, 5), "float64"), graph.input("y", (4,), "int64")
    table = graph.parameter("table", (5, 5), "float64", Initial("normal", 0.5))
    h = graph.relu(graph.linear(x, 5, False, weight=table))
    graph.loss(graph.cross_entropy(graph.linear(h, 5, False, weight=table), y))
    names = [node.name for node in graph.nodes]
    operators = tuple(
        (n.name, OperatorPlan(tuple((f.name, 1) for f in graph.bound(n).factors), (int(n.name in names[2:]),)))
        for n in graph.nodes
    )
    plan = mp.Plan(graph.fingerprint(), "by hand", operators, (("table", WeightPlan((1, 1), (0,))),))
    plan = plan.with_pipeline([names[:2], names[2:]], order="asynchronous", micro_batches=1)
    plan = replace(plan, semantics=(("weights", "stash"),))
    with pytest.raises(RequestError, match=r"semantics\.weights: .*stages 0 1 .*table"):
        trains(graph, plan, mp.SGD(lr=0.1))
