"""Hybrids: the table of the docstring, where weights then live, and which machines have them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maniple.operators.graph.graph import Graph
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.soap.hybrid import MIDDLE, QUARTERS, Hybrid, hybrids


def test_the_table() -> None:
    graph = Graph("two")
    x, y = graph.input("x", (8, 3, 6, 6)), graph.input("y", (8,), dtype="int64")
    h = graph.relu(graph.conv2d(graph.relu(graph.conv2d(x, 4, 3)), 4, 3))
    graph.loss(graph.cross_entropy(graph.flatten(h), y))
    machine = Machine.preset("cpu:2x2")
    plan = Hybrid(1).plan(Problem(graph, machine))
    plan.validate(graph, machine)
    splits = {name: split for name, split, _, _ in plan.table()}
    assert [splits[name] for name in ("conv2d", "conv2d_1", "relu", "relu_1", "flatten", "cross_entropy")] == [
        "b=4",
        "b=2 o=2",
        *["b=2 c=2"] * 3,
        "b=4",
    ]
    assert {plan.operator(name).processors for name in splits} == {(0, 1, 2, 3)}
    others = Hybrid(1, weights_only=True).plan(Problem(graph, machine))
    changed = {name for name, split, _, _ in others.table() if split != splits[name]}
    assert changed == {"relu", "relu_1", "flatten"}
    assert {dict(others.operator(name).degrees)["b"] for name in changed} == {4}
    # A half of the weight is used by processor 0 of one host and 2 of the other, so that is where it lives.
    assert plan.weight("conv2d_1.weight").degrees == (4, 1, 1, 1)
    assert plan.weight("conv2d_1.weight").processors == (0, 2, 1, 3)


@pytest.mark.parametrize(
    ("name", "count"), [("p100x16", QUARTERS + len(MIDDLE)), ("p100x4", 0), ("cpu:4x1", 0), ("p100x6", 0)]
)
def test_which_machines_have_them(name: str, count: int) -> None:
    assert len(hybrids(Machine.preset(name))) == count


def test_hosts_of_different_sizes_have_none() -> None:
    """One has two processors and one four."""
    machine = Machine.preset("cpu:3x2")
    hosts = (0, 0, 1, 1, 1, 1)
    memories = tuple(replace(memory, host=host) for memory, host in zip(machine.memories, (0, 1, 1), strict=True))
    uneven = replace(machine, memories=memories)
    assert tuple(uneven.memories[processor.memory].host for processor in uneven.processors) == hosts
    assert hybrids(uneven) == ()
