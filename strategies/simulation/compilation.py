"""Compilation: everything that a simulation calls is compiled, or loaded, before a search's clock starts."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, final

import numpy as np

from maniple.operators.graph.graph import Graph
from maniple.operators.plan.plan import OperatorPlan
from maniple.process.compilation import compiled
from maniple.regions.columns.history import room
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.network import Network
from maniple.runtime.schedule.traffic import price
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.named.data_parallel import DataParallel
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.timing.ledger import Ledger, RowBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__: list[str] = []

events: Any = import_module("numba.core.event")
"""What numba tells of what it does."""


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
    compiled.remove_unused()


def compile_timing() -> None:
    """Compile what times rows and movements, or load it: what one process can do while another compiles all."""
    network = Network.of(Machine.preset("p100x4"))
    moves, members = (table[:0].copy() for table in room(1)[:2])
    price(network, 4, moves, members)
    ledger = Ledger(2)
    columns, held = np.asarray([(0, 1, 1), (1, 1, 1)]), np.ones((2, 3), dtype=np.int64)
    rows = [ledger.add_rows(RowBlock(columns, held, np.asarray([base]))) for base in (4, 6)]
    edges = ledger.add_edges(np.asarray([(0, 1)]))
    ledger.settle()
    ledger.keep()
    ledger.remove(rows[:1], [edges])
    ledger.settle()
    ledger.undo()


@final
class _Compiling(events.Listener):  # type: ignore[misc]
    """Hears when numba begins to compile a function.

    Args:
        say: is told how many are compiled.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def on_start(self, event: object) -> None:
        """Say how many functions were compiled before this one."""
        say_progress(self._say)

    def on_end(self, event: object) -> None:
        """Say nothing; the next function does."""


def say_progress(say: Callable[[str], None]) -> None:
    """Say how many functions are compiled, by whatever process."""
    done, functions = compiled.progress()
    say(f"compiling the simulator, once for this installation: {done} of {functions} functions")


@contextmanager
def told(say: Callable[[str], None]) -> Iterator[None]:
    """A time in which somebody is told that, and how far, functions are compiled; loading is quick, and not told."""
    with events.install_listener("numba:compile", _Compiling(say)):
        yield
