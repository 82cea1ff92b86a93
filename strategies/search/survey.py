"""Surveys: the tasks of a model under the plans that searches compare, measured before a search's clock starts."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from maniple.process.error import RequestError
from maniple.strategies.interface.equal_split import equal_splits
from maniple.strategies.interface.placement import complete, whole
from maniple.strategies.interface.space import Choice, OperatorSpace, Space
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.named.data_parallel import DataParallel
from maniple.strategies.simulation.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.cost_model.measured import Measured

__all__: list[str] = []


def survey(graph: Graph, machine: Machine, costs: Measured, parts: Sequence[int] = ()) -> None:
    """Measure the tasks of every split of every operator, as far as the time box of the costs goes.

    The operators take turns, so that each has some of its splits measured when the box ends, the equal ones first:

        operator   1st turn   2nd   3rd   4th   5th
        conv2d     whole      o=2   b=2   b=4   i=2
        linear     whole      n=2   b=2   b=4   k=2

    Then come the tasks of micro-batches, of operators on one processor.

    Args:
        graph: the model.
        machine: the machine; its processors are this computer's.
        costs: what measures.
        parts: the numbers of micro-batches that pipelines may have.
    """
    space = Space.of(graph, len(machine.processors))
    simulation = Simulation(graph, machine, DataParallel().plan(Problem(graph, machine)), costs)
    leaders = [number for number, kind in enumerate(space.alike) if space.alike.index(kind) == number]
    splits = [_splits(space.operators[number]) for number in leaders]
    turns = (zip(leaders, turn, strict=True) for turn in zip_longest(*splits))
    for number, degrees in chain.from_iterable(turns):
        if not costs.measuring:
            break
        if degrees is not None:
            simulation.propose({space.names[number]: space.operators[number].plan(Choice(degrees))})
            simulation.reject()
    for count in parts:
        if costs.measuring:
            _cut(graph, machine, costs, count)
    costs.settle()


def _cut(graph: Graph, machine: Machine, costs: Measured, count: int) -> None:
    """Measure the tasks of so many micro-batches; none where they cannot go through the graph one by one."""
    placed = tuple((node.name, whole(graph, node, 0)) for node in graph.nodes)
    alone = complete(Problem(graph, machine), "survey", placed)
    with suppress(RequestError):
        Simulation(graph, machine, alone.with_pipeline(order="gpipe", micro_batches=count), costs)


def _splits(operator: OperatorSpace) -> tuple[tuple[int, ...], ...]:
    """The degrees of the equal splits, and then of all others; what replicas compute is a split with fewer tasks."""
    others = (degrees for degrees, _ in operator.splits())
    return tuple(dict.fromkeys((*equal_splits(operator.factors, operator.processors), *others)))
