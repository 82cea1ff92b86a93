"""Compilation: everything that a simulation calls is compiled, or loaded, before a search's clock starts."""

from __future__ import annotations

from functools import cache

from maniple.operators.graph.graph import Graph
from maniple.operators.plan.plan import OperatorPlan
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.lowering import compiled
from maniple.strategies.named.data_parallel import DataParallel
from maniple.strategies.simulation.simulation import Simulation

__all__: list[str] = []


def is_compiled() -> bool:
    """Whether this version was compiled here before; otherwise `compile_all` takes a minute or more."""
    return compiled.is_warm()


@cache
def compile_all() -> None:
    """Compile every kernel, or load what was compiled before: simulate a small step, and a change of it."""
    graph = Graph("small")
    x, y = graph.input("x", (8, 4)), graph.input("y", (8,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, 4)), 2), y))
    machine = Machine.preset("p100x4")
    plan = DataParallel().plan(Problem(graph, machine))
    simulation = Simulation(graph, machine, plan)
    name, whole = plan.operators[0]
    for keep in (True, False):
        simulation.propose({name: OperatorPlan(tuple((factor, 1) for factor, _ in whole.degrees), (1,))})
        if keep:
            simulation.accept()
        else:
            simulation.reject()
    compiled.note_compiled()
