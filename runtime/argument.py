"""Arguments: what a program gives a task at launch, as values and region requirements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maniple.regions.error import RequestError
from maniple.regions.index_space import RectSet
from maniple.runtime.body import Fields
from maniple.runtime.future import Future, FutureMap
from maniple.runtime.handle import PartitionedRegion, Region
from maniple.runtime.launch import Requirement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.privilege import Privilege
    from maniple.runtime.task import Task

__all__: list[str] = []

Colors = tuple[tuple[int, ...], ...]


def resolve(
    task: Task[..., Any], colors: Colors, args: Sequence[object]
) -> tuple[tuple[object, ...], tuple[Requirement, ...]]:
    """Give for each parameter what a TaskBinder binds, and the requirements among these, in their order.

    Args:
        task: the task.
        colors: the points of the launch.
        args: one for each parameter that is not the colour.

    Raises:
        RequestError: arguments that do not fit the parameters, or a partition without a tile for some point.
    """
    wanted = sum(not parameter.is_color for parameter in task.parameters)
    if len(args) != wanted:
        msg = f"task {task} takes {wanted} arguments at launch, got {len(args)}"
        raise RequestError(msg)
    given = iter(args)
    values: list[object] = []
    requirements: list[Requirement] = []
    for parameter in task.parameters:
        if parameter.is_color:
            values.append(parameter)
            continue
        value = next(given)
        if parameter.privilege is None:
            values.append(_plain(task, parameter.name, value))
            continue
        found = _requirements(task, parameter.name, parameter.privilege, value, colors)
        requirements += found.requirements if isinstance(found, Fields) else (found,)
        values.append(found)
    return tuple(values), tuple(requirements)


def regions(args: Sequence[object]) -> tuple[Region, ...]:
    """Give the regions among the arguments of a launch."""
    named = [value.region if isinstance(value, PartitionedRegion) else value for value in args]
    return tuple(value for value in named if isinstance(value, Region))


def _plain(task: Task[..., Any], parameter: str, value: object) -> object:
    if isinstance(value, Region | PartitionedRegion):
        msg = f"task {task}: parameter {parameter} has no privilege, but was given a region"
        raise RequestError(msg)
    if isinstance(value, Future | FutureMap):
        msg = f"task {task}: parameter {parameter} was given a future; pass its value, future.get()"
        raise RequestError(msg)
    return value


def _requirements(
    task: Task[..., Any], parameter: str, privilege: Privilege, value: object, colors: Colors
) -> Requirement | Fields:
    if isinstance(value, Region):
        region, spaces = value, (value.space,) * len(colors)
    elif isinstance(value, PartitionedRegion):
        region, tiles = value.region, value.partition
        missing = [color for color in colors if not _within(color, tiles.colors.lo, tiles.colors.hi)]
        if missing:
            msg = f"task {task}: parameter {parameter}: no tile for point {missing[0]}; the partition has "
            raise RequestError(msg + str(tiles.colors))
        spaces = tuple(tiles.tile(color) for color in colors)
    else:
        msg = f"task {task}: parameter {parameter} needs a region or region[partition], got {type(value).__name__}"
        raise RequestError(msg)
    found = tuple(Requirement(column, privilege, spaces, region.coherence) for column in region.columns)
    return found[0] if region.fields is None else Fields(found)


def _within(color: tuple[int, ...], lo: tuple[int, ...], hi: tuple[int, ...]) -> bool:
    return len(color) == len(lo) and all(low <= i < high for i, low, high in zip(color, lo, hi, strict=True))


def comparable(value: object) -> object:
    """Give what ranks compare of an argument."""
    if isinstance(value, Fields):
        return [comparable(one) for one in value.requirements]
    if isinstance(value, Requirement):
        places = [_place(space) for space in value.rects]
        return (value.region.id, str(value.privilege), value.coherence.value, places)
    return value


def _place(space: IndexSpace) -> object:
    if isinstance(space, RectSet):
        return [column.tobytes() for column in space.columns]
    return (*space.lo, *space.hi)


def shown(value: object) -> str:
    """Print an argument for the comparison between ranks."""
    if isinstance(value, Fields):
        return "(" + ", ".join(map(shown, value.requirements)) + ")"
    if isinstance(value, Requirement):
        return f"{value.region.name}#{value.region.id}"
    return repr(value) if isinstance(value, int | float | str | bool | None) else type(value).__name__
