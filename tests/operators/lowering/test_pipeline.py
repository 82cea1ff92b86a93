"""Pipelines of operators: passes in the order of the lanes, what runs whole between, and circles that are drawn."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import maniple as mp
from maniple.operators.lowering.pipeline import pipeline_of
from maniple.operators.lowering.script import Script, training_script
from maniple.operators.plan.plan import OperatorPlan, Plan, WeightPlan
from maniple.process.error import RequestError

STAGES = (("x1", "normed"), ("x2", "loss"))


def network(*, normed: bool = False) -> mp.Graph:
    g = mp.Graph("g")
    x, labels = g.input("x", (4, 3)), g.input("labels", (4,), dtype="int64")
    h = g.linear(x, 3, bias=False, name="x1")
    h = g.batch_norm(h, name="normed") if normed else g.relu(h, name="normed")
    g.loss(g.cross_entropy(g.linear(h, 3, bias=False, name="x2"), labels, name="loss"))
    return g


def planned(graph: mp.Graph, order: str, micro_batches: int = 2, again: tuple[str, ...] = ()) -> Plan:
    operators = tuple(
        (
            node.name,
            OperatorPlan(
                tuple((f.name, 1) for f in graph.bound(node).factors),
                (int(node.name in STAGES[1]),),
                recompute=node.name in again,
            ),
        )
        for node in graph.nodes
    )
    weights = tuple((tensor.name, WeightPlan((1,) * len(tensor.shape), (0,))) for tensor in graph.lasting)
    plan = Plan(graph.fingerprint(), "by hand", operators, weights)
    return plan.with_pipeline(STAGES, order=order, micro_batches=micro_batches)


def script(graph: mp.Graph, plan: Plan) -> Script:
    return training_script(graph, None, pipeline_of(plan.order(graph), graph, plan))


def passes(graph: mp.Graph, found: Script) -> list[str]:
    named = graph.nodes, graph.tensors
    return [
        f"{action.kind} {named[action.kind in {'fetch', 'update'}][action.number].name}"
        + (f"#{action.part}" if action.part >= 0 else "")
        for action in found.actions
        if action.kind not in {"input", "clock", "assign"}
    ]


def test_lanes_take_turns_and_updates_come_once_their_gradients_have_all_parts() -> None:
    graph = network()
    found = script(graph, planned(graph, "1f1b"))
    assert found.in_turn
    assert passes(graph, found) == [
        *("forward x1#0", "forward normed#0", "forward x1#1", "forward x2#0", "forward normed#1", "forward loss#0"),
        *("backward loss#0", "backward x2#0", "backward normed#0", "forward x2#1", "backward x1#0", "forward loss#1"),
        "fetch loss",
        *("backward loss#1", "backward x2#1", "update x2.weight", "backward normed#1", "backward x1#1"),
        "update x1.weight",
    ]


def test_weights_may_be_updated_after_their_gradients_came_apart_from_those_of_inputs() -> None:
    graph = network()
    found = passes(graph, script(graph, planned(graph, "0F0 0F1 0I0 0I1 0W1 0W0; 1F0 1F1 1I0 1W0 1I1 1W1")))
    assert found.index("input_gradient x2#0") < found.index("weight_gradient x2#0") < found.index("update x2.weight")
    assert found[-2:] == ["weight_gradient x1#0", "update x1.weight"]


def test_what_is_not_kept_is_computed_again_just_before_it_is_read() -> None:
    """The relu's backward reads its result; ``x2``, of another stage, was sent it in forward, and keeps that."""
    graph = network()

    def first_lane(order: str) -> list[str]:
        found = passes(graph, script(graph, planned(graph, order, again=("x1", "normed"))))
        return [name for name in found if re.search("(x1|normed)#", name) and not name.startswith("forward")]

    back = ["backward normed#{}", "backward x1#{}"]
    assert first_lane("gpipe") == [
        name.format(part) for part in "01" for name in ["again x1#{}", "again normed#{}", *back]
    ]
    assert first_lane("0F0 0F1 0R1 0R0 0B0 0B1; 1F0 1F1 1B0 1B1") == [
        *(f"again {name}#{part}" for part in "10" for name in ("x1", "normed")),
        *(name.format(part) for part in "01" for name in back),
    ]


def test_one_micro_batch_is_cut_nowhere() -> None:
    graph = network(normed=True)
    found = passes(graph, script(graph, planned(graph, "1f1b", 1)))
    assert found[:4] == ["forward x1", "forward normed", "forward x2", "forward loss"]


def test_what_needs_all_samples_runs_whole_at_the_border_of_a_stage() -> None:
    """All forward first: an exact batch norm has all micro-batches before the next stage begins."""
    graph = network(normed=True)
    found = passes(graph, script(graph, planned(graph, "gpipe")))
    assert found.index("forward x1#1") < found.index("forward normed") < found.index("forward x2#0")
    assert found.index("backward x2#1") < found.index("backward normed") < found.index("backward x1#0")


def test_a_circle_is_drawn_with_what_would_help() -> None:
    graph = network(normed=True)
    with pytest.raises(RequestError) as caught:
        script(graph, planned(graph, "1f1b", 4))
    told = str(caught.value)
    assert told.startswith("plan: pipeline: cannot go on, for ")
    assert "0F2" in told or "0F3" in told
    assert "waits for normed.forward of all micro-batches" in told
    assert "normed: statistics over the whole batch need all micro-batches at once" in told
    assert "batch_norm=local_stats" in told


def test_what_runs_whole_is_not_computed_again() -> None:
    graph = network(normed=True)
    with pytest.raises(RequestError, match=r"operators\.normed\.recompute: expected false: it is not cut"):
        script(graph, planned(graph, "gpipe", again=("normed",)))
    graph = network()
    alone = replace(planned(graph, "gpipe", again=("normed",)), stages=(), pipeline=None)
    assert passes(graph, script(graph, alone))[-6:-2] == [
        *("again normed", "backward x2", "update x2.weight", "backward normed"),
    ]
