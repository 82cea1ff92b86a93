"""Alternations: the table of the docstring, what moves between the products of a pair, and which graphs have them."""

from __future__ import annotations

import pytest

from maniple.models import model
from maniple.operators.graph.graph import Graph
from maniple.operators.plan.plan import Plan
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.named.data_parallel import DataParallel
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap.alternation import Alternation, alternations
from maniple.strategies.soap.hybrid import hybrids
from maniple.strategies.soap.seeding import choices_of, seeding
from maniple.zoo.catalogue import entry

NAMES = ("layer_norm", "linear", "relu", "linear_1", "add")


def block() -> Graph:
    """Two texts of eight positions: a norm, two products and a shortcut."""
    graph = Graph("block")
    x, y = graph.input("x", (2, 8, 16)), graph.input("y", (2, 8, 16))
    h = graph.linear(graph.relu(graph.linear(graph.layer_norm(x, 16), 32)), 16)
    graph.loss(graph.mse_loss(graph.add(x, h), y))
    return graph


def convolutions() -> Graph:
    """Two convolutions, whose products are left as they are: their windows want neighbouring rows."""
    graph = Graph("convolutions")
    x, y = graph.input("x", (8, 4, 8, 8)), graph.input("y", (8,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.flatten(graph.conv2d(graph.conv2d(x, 8, 3), 8, 3)), y))
    return graph


def cuts(plan: Plan) -> list[str]:
    """How the operators of the table are cut."""
    return [
        " ".join(f"{name}={degree}" for name, degree in plan.operator(each).degrees if degree > 1) for each in NAMES
    ]


def test_the_table() -> None:
    graph = block()
    assert {node.name for node in graph.nodes} >= set(NAMES)
    for name, found in (
        ("cpu:2x2", ["b=2 s=2", "b=2 n=2", "b=2 c=2", "b=2 k=2", "b=2 s=2"]),
        ("cpu:4x2", ["b=2 s=4", "b=2 s=2 n=2", "b=2 s=2 c=2", "b=2 s=2 k=2", "b=2 s=4"]),
    ):
        machine = Machine.preset(name)
        plan = Alternation(2).plan(Problem(graph, machine))
        plan.validate(graph, machine)
        assert cuts(plan) == found
        assert {plan.operator(each).processors for each in NAMES} == {tuple(range(len(machine.processors)))}


def test_nothing_moves_between_the_products_of_a_pair() -> None:
    """What the first gives, and what follows it, is where the second wants it; what the second gives is folded."""
    graph, machine = block(), Machine.preset("p100x8")
    simulation = Simulation(graph, machine, Alternation(4).plan(Problem(graph, machine)))
    moved = {row.name.split()[-1] for row in simulation.name_rows() if row.category != "task"}
    between = {graph.tensors[result].name for node in graph.nodes[1:3] for result in node.results}
    assert not moved & {*between, *(f"{name}.grad" for name in between)}
    down = graph.tensors[graph.nodes[3].results[0]].name
    kinds = {row.category for row in simulation.name_rows() if row.name.split()[-1] == down}
    assert "reduce_scatter" in kinds


def test_a_table_of_words_is_cut_by_word() -> None:
    graph = model("gpt", batch=4, **entry("gpt").reduced)
    plan = Alternation(4).plan(Problem(graph, Machine.preset("p100x16")))
    assert (plan.operator("embedding").degree("v"), plan.operator("classifier").degree("n")) == (4, 4)
    assert plan.operator("cross_entropy_loss").degree("c") == 4


@pytest.mark.parametrize(
    ("name", "graph", "sizes"),
    [("p100x8", block(), (4, 2)), ("p100x4", block(), ()), ("cpu:4x1", block(), ()), ("p100x8", convolutions(), ())],
)
def test_which_graphs_and_machines_have_them(name: str, graph: Graph, sizes: tuple[int, ...]) -> None:
    found = alternations(Problem(graph, Machine.preset(name)))
    assert tuple(vars(one)["_size"] for one in found) == sizes


def test_a_search_begins_with_them_and_they_beat_what_it_had() -> None:
    """A decoder of few texts on hosts of eight: faster than data parallelism and every hybrid."""
    machine = Machine.preset("h100x16")
    graph = model("gpt", batch=2, words=4096, steps=1024, width=768, heads=8, layers=2)
    problem = Problem(graph, machine)
    plans = [strategy.plan(problem) for strategy in (DataParallel(), *hybrids(machine), *alternations(problem)[:1])]
    assert choices_of(seeding(problem).space, plans[-1]) is not None
    *others, found = (Simulation(graph, machine, plan).makespan_ns for plan in plans)
    assert found < min(others)
