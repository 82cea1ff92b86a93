"""What tasks take, by a name that a user gives: the roofline, what is measured here, or a file of measurements."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, final, runtime_checkable

from maniple.process import environment
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.cost_model.cost_model import CostModel, Repeated
    from maniple.strategies.cost_model.gpu_timer import GpuTimer
    from maniple.strategies.cost_model.measured import Measured
    from maniple.strategies.cost_model.measurement import Measurements
    from maniple.strategies.cost_model.store import Store
    from maniple.strategies.interface.strategy import AbstractStrategy

__all__: list[str] = []

ANALYTIC, MEASURED, CPU = "analytic", "measured", "cpu"


@runtime_checkable
class Costs(Protocol):
    """What a search asks for what tasks take."""

    @property
    def timing(self) -> bool:
        """Whether tasks can be timed, so that plans can be put side by side."""
        ...

    def survey(self, within_s: float = inf) -> CostModel | None:
        """What to search with; None for the roofline. Asked for as a search begins, which gives it so many seconds."""
        ...

    def side_by_side(self, plans: Sequence[Plan], within_s: float = inf) -> Repeated | None:
        """What tasks of plans take, timed in turn; None where none was. Asked for as a search ends, likewise."""
        ...


def parts_of(chosen: AbstractStrategy[Any], graph: Graph, machine: Machine, asked: int | None) -> tuple[int, ...]:
    """The numbers of micro-batches of which a strategy wants to know what their tasks take."""
    from maniple.strategies.interface.strategy import Problem

    if not chosen.pipelines or len(machine.processors) == 1:
        return ()
    # Searches without pipelines need no module of theirs.
    from maniple.strategies.segmentation.finalists import micro_batch_counts

    return micro_batch_counts(Problem(graph, machine, micro_batches=asked))


@final
class NamedCosts:
    """The costs of a name, for searches of one graph on one machine: surveyed once, as the first search begins.

    Args:
        name: see `costs_of`.
        graph: what is searched.
        machine: the machine.
        parts: the numbers of micro-batches that pipelines may have.
    """

    def __init__(self, name: str, graph: Graph, machine: Machine, parts: Sequence[int] = ()) -> None:
        self._of, self._parts = (name, graph, machine), parts
        self._surveyed: tuple[Measured | None] | None = None
        self._latest: Measured | None = None

    @property
    def timing(self) -> bool:
        """Whether tasks are timed here."""
        return self._of[0] == MEASURED

    @property
    def latest(self) -> Measured | None:
        """What the plan of the last search was predicted with."""
        return self._latest

    def survey(self, within_s: float = inf) -> Measured | None:
        """What to search with; what another search of them has measured is not measured again.

        Args:
            within_s: seconds that measuring may take.

        Raises:
            RequestError: see `costs_of`.
        """
        if self._surveyed is None:
            self._surveyed = (survey_costs(*self._of, within_s, self._parts),)
        (self._latest,) = self._surveyed
        return self._latest

    def side_by_side(self, plans: Sequence[Plan], within_s: float = inf) -> Repeated | None:
        """What the tasks of some plans take, timed in turn; None where nothing is measured here.

        Args:
            plans: the plans.
            within_s: seconds that it may take.

        Raises:
            RequestError: see `costs_of`.
        """
        from maniple.strategies.cost_model.cost_model import Repeated
        from maniple.strategies.simulation.simulation import Simulation

        name, graph, machine = self._of
        if self._latest is None or not self.timing:
            return None
        with costs_of(name, graph, machine, self._latest.measurements, within_s) as found:
            if found is None:
                return None
            for plan in plans:
                Simulation(graph, machine, plan, found)
            made = found.side_by_side()
        self._latest = found.freeze()  # the cache has it now, so others predict the same
        return Repeated(self._latest, tuple(found.freeze(back) for back in range(made, 0, -1)))


@contextmanager
def costs_of(
    name: str, graph: Graph, machine: Machine, known: Measurements | None = None, within_s: float = inf
) -> Iterator[Measured | None]:
    """The costs of a name: None for the roofline of the machine's processors.

    What is measured meanwhile is kept in the user's cache when the context ends, whatever ends it.

    Args:
        name: ``analytic``; ``measured``: what the cache has, and what is not there is timed on this computer, within a
            time box; or a file of measurements, of this computer or another, where what is not there is interpolated.
        graph: whose step: how much it touches decides what a task finds in caches.
        machine: the machine.
        known: what this program has measured before, of which the cache keeps what other programs can use.
        within_s: seconds that measuring may take from now on.

    Raises:
        RequestError: there is no such file, an entry of it or of the cache is wrong, or the machine's processors are
            of a kind that is not here, or of two.
    """
    began_s = time.monotonic()
    if name == ANALYTIC:
        yield None
        return
    from maniple.found_plans import headway_step
    from maniple.strategies.cost_model.measured import Measured, read_measurements
    from maniple.strategies.cost_model.measured_device import measured_kind
    from maniple.strategies.cost_model.measurement import step_bytes

    if name != MEASURED:
        if not Path(name).is_file():
            raise RequestError(
                f"{name}: cannot be read; expected {ANALYTIC}, {MEASURED}, or a file of measurements"
                f"{nearest(name, (ANALYTIC, MEASURED))}"
            )
        yield Measured(machine, read_measurements(name), measuring=False, footprint=step_bytes(graph))
        return
    kind = measured_kind(machine)
    store = _store(kind)
    measurements = store.read()
    if known is not None:
        measurements.tasks.update({key: task for key, task in known.tasks.items() if not key.lasts})
    before = dict(measurements.tasks)
    with ExitStack() as opened:
        deadline, footprint, get_on = began_s + within_s, step_bytes(graph), headway_step()
        made = partial(Measured, machine, measurements, deadline=deadline, footprint=footprint, get_on=get_on)
        measured = made() if kind == CPU else made(timer=opened.enter_context(open_timer(kind, machine)))
        try:
            yield measured
        finally:
            if measurements.tasks != before:
                store.add(measurements)


@contextmanager
def open_timer(kind: str, machine: Machine) -> Iterator[GpuTimer]:
    """What times tasks on a GPU here, inside.

    Args:
        kind: the device, by its name in the registry.
        machine: what it is part of.
    """
    from maniple.strategies.cost_model.gpu_timer import GpuTimer

    timer = GpuTimer(kind, machine.memories[0].capacity_bytes)
    try:
        yield timer
    finally:
        timer.close()


def _store(kind: str) -> Store:
    """The user's cache."""
    from maniple.strategies.cost_model.store import Store

    return Store(environment.cache_folder(), kind)


def survey_costs(
    name: str, graph: Graph, machine: Machine, within_s: float = inf, parts: Sequence[int] = ()
) -> Measured | None:
    """The costs of a name for a search: what it may ask for is measured now, and nothing is while it goes on.

    So the same measurements and seed find the same plan.

    Args:
        name: see `costs_of`.
        graph: what is searched.
        machine: the machine.
        within_s: seconds that measuring may take.
        parts: the numbers of micro-batches that pipelines may have.

    Raises:
        RequestError: see `costs_of`.
    """
    if name == ANALYTIC:
        return None
    # Loaded on use: planning with the roofline needs no torch.
    from maniple.strategies.cost_model.measured_device import measured_kind
    from maniple.strategies.cost_model.measurement import Measurements
    from maniple.strategies.search.survey import survey

    with costs_of(name, graph, machine, within_s=within_s) as found:
        if found is None:
            return None
        if name == MEASURED:
            # A cache that keeps nothing is refused now, not when the search is done.
            _store(kind := measured_kind(machine)).add(Measurements.here(kind))
        survey(graph, machine, found, parts)
        return found.freeze()


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
        return found.freeze()
