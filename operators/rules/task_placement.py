"""Where the tasks of one operator run: a point of a launch for each tile, and for each of its replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniple.runtime.schedule.launch import Point

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maniple.operators.rules.configuration import OperatorPlan
    from maniple.operators.rules.rule import BoundRule, Tile
    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class PlacedTasks:
    """The forward tasks of one operator, replicas next to each other.

    Args:
        points: where they run.
        tiles: what each computes.
        folds: for every result the operation by which tasks fold into it; None where each writes a part of its own.
    """

    points: tuple[Point, ...]
    tiles: tuple[Tile, ...]
    folds: tuple[str | None, ...]

    def primary(self) -> PlacedTasks:
        """The tasks of backward: replica 0 of each point, since a gradient counts once."""
        chosen = [i for i, point in enumerate(self.points) if point.replica == 0]
        return PlacedTasks(tuple(self.points[i] for i in chosen), tuple(self.tiles[i] for i in chosen), self.folds)


def place_tasks(bound: BoundRule, config: OperatorPlan, machine: Machine) -> PlacedTasks:
    """Give the tasks of an operator that have something to do.

    Args:
        bound: its rule.
        config: its degrees and processors.
        machine: the processors' memories.
    """
    degrees = dict(config.degrees)
    folds = tuple(bound.folds(result, degrees) for result in range(len(bound.rule.results)))
    points, tiles = [], []
    for number, tile in enumerate(bound.tiles(degrees)):
        if tile.is_empty:
            continue
        placed = replicas(tile.index, config.of_point(number), machine)
        # A contribution counts once, so a replica of a task that folds would be thrown away.
        for point in placed[:1] if any(folds) else placed:
            points.append(point)
            tiles.append(tile)
    return PlacedTasks(tuple(points), tuple(tiles), folds)


def replicas(color: tuple[int, ...], processors: Iterable[int], machine: Machine) -> list[Point]:
    """Place the replicas of one point: one per memory, for a memory holds one valid copy."""
    chosen: dict[int, int] = {}
    for processor in processors:
        chosen.setdefault(machine.memory_of(processor), processor)
    return [Point(color, processor, replica) for replica, processor in enumerate(chosen.values())]
