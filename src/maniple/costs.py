"""What tasks take, by a name that a user gives: the roofline, what is measured here, or a file of measurements."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from maniple.regions.error import RequestError, nearest
from maniple.runtime import environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maniple.operators.graph import Graph
    from maniple.operators.plan import Plan
    from maniple.runtime.machine import Machine
    from maniple.strategies.cost_model.measured import Measured

__all__: list[str] = []

ANALYTIC, MEASURED = "analytic", "measured"


@contextmanager
def costs_of(name: str, graph: Graph, machine: Machine) -> Iterator[Measured | None]:
    """The costs of a name: None for the roofline of the machine's processors.

    What is measured meanwhile is kept in the user's cache when the context ends, whatever ends it.

    Args:
        name: ``analytic``; ``measured``: what the cache has, and what is not there is timed on this computer, within a
            time box; or a file of measurements, of this computer or another, where what is not there is interpolated.
        graph: whose step: how much it touches decides what a task finds in caches.
        machine: the machine.

    Raises:
        RequestError: there is no such file, an entry of it or of the cache is wrong, or the machine's processors are
            not of the kind that is measured.
    """
    if name == ANALYTIC:
        yield None
        return
    from maniple.strategies.cost_model.measured import Measured, read_measurements
    from maniple.strategies.cost_model.measurement import step_bytes
    from maniple.strategies.cost_model.store import Store

    if name != MEASURED:
        if not Path(name).is_file():
            raise RequestError(
                f"{name}: cannot be read; expected {ANALYTIC}, {MEASURED}, or a file of measurements"
                f"{nearest(name, (ANALYTIC, MEASURED))}"
            )
        yield Measured(machine, read_measurements(name), measuring=False, footprint=step_bytes(graph))
        return
    kinds = sorted({processor.kind for processor in machine.processors} - {"cpu"})
    if kinds:
        raise RequestError(
            f"costs {name!r}: {machine.name} has processors of kind {kinds[0]}, and only CPUs are measured here; use "
            f"{ANALYTIC!r}, or a file that was measured there"
        )
    store = Store(environment.cache_folder())
    measured = Measured(machine, store.read(), footprint=step_bytes(graph))
    known = dict(measured.measurements.tasks)
    try:
        yield measured
    finally:
        if measured.measurements.tasks != known:
            store.add(measured.measurements)


def surveyed(name: str, graph: Graph, machine: Machine) -> Measured | None:
    """The costs of a name for a search: what it may ask for is measured now, and nothing is while it goes on.

    So the same measurements and seed find the same plan.

    Args:
        name: see `costs_of`.
        graph: what is searched.
        machine: the machine.

    Raises:
        RequestError: see `costs_of`.
    """
    if name == ANALYTIC:
        return None
    # Loaded on use: planning with the roofline needs no torch.
    from maniple.strategies.survey import survey

    with costs_of(name, graph, machine) as found:
        if found is None:
            return None
        survey(graph, machine, found)
        return found.frozen()


def costs_of_plan(name: str, graph: Graph, machine: Machine, plan: Plan) -> Measured | None:
    """The costs of a name for one plan: what its tasks take is measured and settled now.

    Args:
        name: see `costs_of`.
        graph: the model.
        machine: the machine.
        plan: the plan.

    Raises:
        RequestError: see `costs_of`; or the plan is not one for the graph and machine.
    """
    from maniple.strategies.simulation.simulation import Simulation

    with costs_of(name, graph, machine) as found:
        if found is None:
            return None
        if found.measuring:
            Simulation(graph, machine, plan, found)
            found.settle()
        return found.frozen()
