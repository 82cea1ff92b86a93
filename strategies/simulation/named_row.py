"""Named rows: the rows of a simulated step as people call them, and where they are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from maniple.regions.columns.history import BY, FROM, GROUP, GROUP_SIZE, KIND, TO
from maniple.runtime.schedule.schedule import RowKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.launch import Point
    from maniple.runtime.schedule.network import Column
    from maniple.strategies.simulation.launch_table import PlacedLaunch
    from maniple.strategies.simulation.region_cache import RegionRows
    from maniple.strategies.timing.ledger import Placed

__all__: list[str] = []

COPY_ENGINE = "copy engine"
"""The lane of movements in a timeline."""


@final
@dataclass(frozen=True, slots=True)
class Named:
    """A row of a ledger and what people call it.

    Args:
        number: the row.
        name: the task or movement.
        category: ``task``, ``fold``, ``copy`` or a collective's name.
        lanes: (rank, lane) where it is drawn.
    """

    number: int
    name: str
    category: str
    lanes: tuple[tuple[int, str], ...]


def name_tasks(machine: Machine, launches: Iterable[tuple[PlacedLaunch, Placed]], wanted: Column) -> Iterator[Named]:
    """Name some rows of launches, as far as they are wanted.

    Args:
        machine: the machine.
        launches: each with where its rows are.
        wanted: numbers of rows, ascending.
    """
    for found, block in launches:
        points: list[Point] = []
        for number in block.within(wanted):
            points = points or list(found.rows.tasks.launch().points)
            where = machine.processor(points[number].processor)
            lanes = ((machine.rank_of(where.id), where.name),)
            yield Named(block.first + number, f"{found.name}{points[number]}", "task", lanes)


def name_movements(
    machine: Machine, regions: Iterable[tuple[str, RegionRows, Placed]], wanted: Column
) -> Iterator[Named]:
    """Name some movements of regions, as far as they are wanted.

    Args:
        machine: the machine.
        regions: of each its name, what it adds to the step, and where its movements are.
        wanted: numbers of rows, ascending.
    """
    for name, rows, moves in regions:
        for number in moves.within(wanted):
            move = rows.moves[number]
            what = RowKind(int(move[KIND])).name.lower()
            if move[BY] >= 0:
                processor = machine.processor(int(move[BY]))
                lanes = [(machine.rank_of(processor.id), processor.name)]
            else:
                group = rows.members[move[GROUP] : move[GROUP] + move[GROUP_SIZE], 0]
                memories = (move[FROM], move[TO]) if move[FROM] >= 0 else group
                lanes = [(machine.memories[memory].rank, COPY_ENGINE) for memory in memories]
            yield Named(moves.first + number, f"{what} {name}", what, tuple(lanes))
