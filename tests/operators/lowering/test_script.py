"""Scripts: what a step does, and in which order."""

from __future__ import annotations

import pytest

import maniple as mp
from maniple.models import model
from maniple.operators.graph.differentiation import gradient_operands, gradient_results
from maniple.operators.lowering.script import Script, evaluation_script, fetch_script, training_script
from maniple.process.error import RequestError

MODELS: tuple[tuple[str, dict[str, int]], ...] = (
    ("digits_cnn", {}),
    ("gpt", {"words": 50, "steps": 8, "width": 16, "heads": 2, "layers": 1}),  # a weight that two operators share
    ("resnet18", {"image": 32, "classes": 10, "shrink": 32}),  # buffers
)


def text(graph: mp.Graph, script: Script) -> list[str]:
    names = {"forward": graph.nodes, "backward": graph.nodes}
    return [
        kind if kind == "clock" else f"{kind} {names.get(kind, graph.tensors)[number].name}"
        for kind, number, *_ in script.actions
    ]


def network() -> mp.Graph:
    g = mp.Graph("g")
    x, y = g.input("x", (8, 2)), g.input("y", (8,), dtype="int64")
    logits = g.linear(g.relu(g.linear(x, 4)), 3)
    g.output("logits", logits)
    g.output("again", logits)
    g.loss(g.cross_entropy(logits, y))
    return g


def test_a_step_goes_forward_fetches_the_loss_and_goes_back() -> None:
    graph = network()
    assert text(graph, training_script(graph)) == [
        *("input x", "input y", "clock"),
        *("forward linear", "forward relu", "forward linear_1", "forward cross_entropy"),
        "fetch cross_entropy",
        *("backward cross_entropy", "backward linear_1", "update linear_1.weight", "update linear_1.bias"),
        *("backward relu", "backward linear", "update linear.weight", "update linear.bias"),
    ]


def test_an_evaluation_goes_forward_as_far_as_outputs_need_and_fetches_them_by_name() -> None:
    graph = network()
    script = evaluation_script(graph)
    assert text(graph, script)[3:] == ["forward linear", "forward relu", "forward linear_1", *2 * ["fetch linear_1"]]
    assert [action.port for action in script.actions[-2:]] == ["logits", "again"]
    assert [action.port for action in fetch_script(graph).actions] == [tensor.name for tensor in graph.parameters]


@pytest.mark.parametrize(("name", "sizes"), MODELS, ids=[name for name, _ in MODELS])
def test_each_thing_is_done_once_and_after_what_it_needs(name: str, sizes: dict[str, int]) -> None:
    graph = model(name, batch=4, **sizes)
    script = training_script(graph)
    at = {(kind, number): place for place, (kind, number, *_) in enumerate(script.actions)}
    assert len(at) == len(script.actions)
    wanted = graph.differentiated_tensors()
    for node in script.nodes:
        assert at["forward", node.id] < at["backward", node.id]
        for operand in node.operands:
            producer = None if operand is None else graph.producer(operand)
            assert producer is None or at["forward", producer.id] < at["forward", node.id]
            assert producer is None or at["backward", node.id] < at["backward", producer.id]
    trained = {tensor.id for tensor in graph.parameters if tensor.id in wanted}
    assert {number for kind, number in at if kind == "update"} == trained
    for tensor in trained:
        contributors = [
            at["backward", node.id]
            for node in script.nodes
            if tensor in gradient_operands(graph, node).values()
            and wanted.intersection(gradient_results(graph, node).values())
        ]
        between = script.actions[max(contributors) + 1 : at["update", tensor]]
        assert max(contributors) < at["update", tensor]
        assert {action.kind for action in between} <= {"update"}
    buffers = len(graph.assignments)
    assert [action.number for action in script.actions[len(at) - buffers :]] == list(graph.assignments)


def test_a_step_needs_a_loss() -> None:
    g = mp.Graph("g")
    g.output("y", g.relu(g.input("x", (4, 2))))
    with pytest.raises(RequestError, match="graph 'g' has no loss"):
        training_script(g)
