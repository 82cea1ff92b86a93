"""Placement of a plan through a mapper: the mapper hears what the plan suggests and may answer otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from maniple.process.error import RequestError
from maniple.regions.partition import blocks
from maniple.regions.rectangle import Rect
from maniple.runtime.program.mapper import LaunchView, check_mapper
from maniple.runtime.program.mapping import map_launch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.plan.plan import Plan
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.program.mapper import Mapper

__all__: list[str] = []


def map_plan(plan: Plan, graph: Graph, machine: Machine, mapper: Mapper) -> Plan:
    """Give the plan with the processors that a mapper chooses.

    The mapper is asked once for each operator (its forward and backward tasks share processors) and once for each
    weight's home. A point's replicas appear as points with one more coordinate.

    Raises:
        RequestError: what was given is no mapper; an illegal answer, or replicas of one point on one processor.
    """
    check_mapper(mapper, f"graph {graph.name!r}")
    operators = []
    for node in graph.nodes:
        config = plan.operator(node.name)
        colors = [tile.index for tile in graph.bound(node).tiles(dict(config.degrees))]
        chosen = _ask(mapper, machine, node.name, colors, config.replicas, config.processors)
        operators.append((node.name, replace(config, processors=chosen)))
    homes = []
    for tensor in graph.lasting:
        home = plan.weight(tensor.name)
        colors = list(blocks(home.degrees).bind(Rect.of_shape(tensor.shape)).colors.points())
        chosen = _ask(mapper, machine, f"{tensor.name}.update", colors, home.replicas, home.processors)
        homes.append((tensor.name, replace(home, processors=chosen)))
    return replace(plan, operators=tuple(operators), weights=tuple(homes))


def _ask(
    mapper: Mapper,
    machine: Machine,
    name: str,
    colors: Sequence[tuple[int, ...]],
    replicas: int,
    suggested: tuple[int, ...],
) -> tuple[int, ...]:
    points = tuple((*color, replica) if replicas > 1 else color for color in colors for replica in range(replicas))
    view = LaunchView(name, points, machine, suggested)
    chosen = map_launch(mapper, view, {"cpu": "cpu"}).processors
    for start in range(0, len(chosen), replicas):
        if len(set(chosen[start : start + replicas])) < replicas:
            msg = (
                f"mapper {type(mapper).__name__} put replicas of {name}{points[start]} on one processor: "
                f"{chosen[start : start + replicas]}; the plan wants {replicas} different ones"
            )
            raise RequestError(msg)
    return chosen
