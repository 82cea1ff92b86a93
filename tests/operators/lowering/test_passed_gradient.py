"""Passed gradients: sums whose summands' gradients are theirs, as they are."""

from __future__ import annotations

import maniple as mp
from maniple.operators.lowering.expansion import training_step
from maniple.operators.lowering.passed_gradient import passed_gradients
from maniple.runtime.schedule.launch import Launch


def summed(kind: str) -> mp.Graph:
    """``stream`` is a sum of two branches, or of a branch and what the branch read too, or a sum of sums."""
    g = mp.Graph(kind)
    x, y = g.input("x", (8, 4)), g.input("y", (8,), dtype="int64")
    h = g.linear(x, 4, name="before")
    one = g.linear(h, 4, name="one")
    stream = g.add(h if kind == "skip" else g.linear(h, 4, name="other"), one, name="stream")
    if kind == "sums":
        stream = g.add(stream, g.linear(h, 4, name="third"), name="sums")
    g.loss(g.cross_entropy(stream, y))
    return g


def launches(graph: mp.Graph, processors: int = 2) -> dict[str, Launch]:
    machine = mp.Machine.cpu(1, ranks=processors)
    return {
        launch.name: launch
        for launch in training_step(graph, mp.search(graph, machine), machine, mp.SGD(lr=0.1)).launches
    }


def read(launch: Launch) -> str:
    return launch.requirements[0].region.name


def test_of_two_branches_both_gradients_are_the_sums_and_it_has_no_task() -> None:
    found = launches(summed("branches"))
    assert "stream.backward" not in found
    assert {read(found[f"{name}.weight_gradient"]) for name in ("one", "other")} == {"stream.grad"}


def test_what_others_contribute_to_is_contributed_to() -> None:
    graph = summed("skip")
    assert passed_gradients(graph) == {graph.node("stream").id: (1,)}
    found = launches(graph)
    assert [need.region.name for need in found["stream.backward"].requirements] == ["stream.grad", "before.grad"]
    assert read(found["one.backward"]) == "stream.grad"


def test_of_a_sum_of_sums_the_last_gradient_is_all_of_them() -> None:
    found = launches(summed("sums"))
    assert not {"stream.backward", "sums.backward"} & set(found)
    assert {read(found[f"{name}.backward"]) for name in ("one", "other", "third")} == {"sums.grad"}


def test_an_operand_that_is_there_twice_gets_twice_the_gradient() -> None:
    g = mp.Graph("twice")
    x, y = g.input("x", (8, 4)), g.input("y", (8,), dtype="int64")
    h = g.linear(x, 4)
    g.loss(g.cross_entropy(g.add(h, h), y))
    assert passed_gradients(g) == {}
    assert "add.backward" in launches(g)
