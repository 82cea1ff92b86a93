"""Movements: an operator under one choice, and what it, its neighbours and its weights add to a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniple.regions.columns.validity import READ

if TYPE_CHECKING:
    from maniple.runtime.schedule.network import Column
    from maniple.strategies.simulation.operator_form import OperatorForm
    from maniple.strategies.simulation.region_cache import RegionRows, Use

__all__: list[str] = []

End = tuple[str, str, int]
"""``value`` or ``gradient`` of an ``operand`` or a ``result`` of an operator, and which one."""
Own = tuple[tuple[tuple[int, ...], int], tuple["Use", ...]]
"""A region of an operator's own: its shape and the bytes of an element, and its uses."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacedUse:
    """A use of a region at an operator's end.

    Args:
        end: the region.
        launch: the number of the operator's launch.
        use: the use.
    """

    end: End
    launch: int
    use: Use

    @property
    def writes(self) -> bool:
        """Whether it writes, or contributes to a sum."""
        return self.use.shape.access != READ


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """An operator under one choice.

    Args:
        form: its form.
        forward: how many of its launches, the first ones, are of the forward pass.
        durations: by launch the nanoseconds of each task.
        processors: by launch the processor of each task.
        uses: of the regions that others use too, in program order.
        inside: of each region of its own that holds gradients the shape and the bytes of an element, and its uses in
            program order.
        values: the same of those that hold values.
        saved: the same of what its forward pass keeps for its backward pass alone.
    """

    form: OperatorForm
    forward: int
    durations: tuple[Column, ...]
    processors: tuple[Column, ...]
    uses: tuple[PlacedUse, ...]
    inside: tuple[Own, ...]
    values: tuple[Own, ...]
    saved: tuple[Own, ...]

    def at(self, end: End, *, forward: bool) -> list[PlacedUse]:
        """The uses of a region by the launches of one pass."""
        return [found for found in self.uses if found.end == end and (found.launch < self.forward) == forward]

    def of(self, end: End) -> list[Use]:
        """All uses of a region, in program order."""
        return [found.use for found in self.uses if found.end == end]


@dataclass(frozen=True, slots=True, eq=False)
class Synchronisation:
    """What a weight adds to a step.

    Args:
        value: what its value moves.
        gradient: what its gradient moves and folds; None where it has none.
        readers: for each user the number of the use by which its forward pass reads the value; -1: by none.
        contributor: the number of the gradient's last contribution.
        processors: where it is updated.
        update: nanoseconds of the tasks of the update.
        lanes: how many processors and links there are.
    """

    value: RegionRows
    gradient: RegionRows | None
    readers: tuple[int, ...]
    contributor: int
    processors: Column
    update: Column
    lanes: int


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A region between two operators.

    Args:
        rows: what it adds to a step if nobody else uses it.
        uses: of its use by the two, in program order.
        alone: whether nobody else uses it.
    """

    rows: RegionRows
    uses: tuple[PlacedUse, ...]
    alone: bool
