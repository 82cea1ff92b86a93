"""Operations: launches as the program states them, before anything is mapped or analysed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from maniple.regions.error import RequestError
from maniple.regions.index_space import RectSet
from maniple.regions.rectangle import Rect
from maniple.runtime.future import Future, FutureMap
from maniple.runtime.handle import PartitionedRegion, Region

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maniple.regions.index_space import IndexSpace
    from maniple.regions.logical_region import LogicalRegion
    from maniple.regions.privilege import Coherence
    from maniple.regions.subspace import Partition
    from maniple.runtime.launch import Requirement
    from maniple.runtime.mapper import Mapper
    from maniple.runtime.projection import Projection
    from maniple.runtime.task import Task

__all__: list[str] = []

Domain = Rect | Sequence[int] | int


@dataclass(frozen=True, slots=True)
class Tiles:
    """A region argument: the whole region at every point, or a tile of a partition for each.

    It refers to the fields, not to the program's handle, so that it keeps no region alive.

    Args:
        columns: the fields, each a logical region.
        space: the elements of the region.
        several: whether a body sees a tuple of fields, be it of one.
        coherence: how tasks that use the same elements are ordered.
        partition: the tiles; None for the whole region.
        projection: which tile a point uses; None for its own.
    """

    columns: tuple[LogicalRegion, ...]
    space: IndexSpace
    several: bool
    coherence: Coherence
    partition: Partition | None = None
    projection: Projection | None = None

    @classmethod
    def of(cls, value: Region | PartitionedRegion) -> Tiles:
        """The argument that a handle is."""
        region = value if isinstance(value, Region) else value.region
        whole = (region.columns, region.space, region.fields is not None, region.coherence)
        return cls(*whole) if isinstance(value, Region) else cls(*whole, value.partition, value.projection)

    def is_of(self, value: object) -> bool:
        """Whether a launch argument names the same tiles."""
        if isinstance(value, PartitionedRegion):
            return (
                self._same(value.region)
                and (value.partition is self.partition or value.partition == self.partition)
                and value.projection == self.projection
            )
        return isinstance(value, Region) and self.partition is None and self._same(value)

    def _same(self, region: Region) -> bool:
        return (
            region.columns == self.columns
            and (region.fields is not None) == self.several
            and region.coherence is self.coherence
            and (region.space is self.space or region.space == self.space)
        )

    def rects(self, colors: tuple[tuple[int, ...], ...], domain: Rect | None) -> tuple[IndexSpace, ...]:
        """The elements of each point; none where the projection says that a point uses nothing.

        Raises:
            RequestError: a point has no tile.
        """
        tiles = self.partition
        if tiles is None:
            return (self.space,) * len(colors)
        if self.projection is None and domain == tiles.colors:
            return tiles.subspaces
        return tuple(self._rect(tiles, point) for point in colors)

    def _rect(self, tiles: Partition, point: tuple[int, ...]) -> IndexSpace:
        color = point if self.projection is None else self.projection.color(point, tiles.colors)
        if color is None:
            corner = self.columns[0].bounds.lo
            return Rect(corner, corner)
        if len(color) != tiles.colors.ndim or not tiles.colors.contains(Rect(color, tuple(i + 1 for i in color))):
            via = "" if self.projection is None else f", which is projected to {color}"
            msg = f"no tile for point {point}{via}; the partition has {tiles.colors}"
            raise RequestError(msg)
        return tiles.tile(color)

    def key(self) -> tuple[object, ...]:
        """What tells it from others; partitions count by identity."""
        ids = tuple(column.id for column in self.columns)
        return (ids, self.space, self.several, self.coherence, id(self.partition), self.projection)

    def __str__(self) -> str:
        whole = ", ".join(f"{column.name}#{column.id}" for column in self.columns)
        if self.partition is not None:
            return f"{whole}[{self.partition.colors.volume} tiles]"
        return whole if self.space == self.columns[0].bounds else f"{whole}{self.space}"


@dataclass(frozen=True, eq=False, slots=True)
class Operation:
    """One launch of the program.

    Args:
        task: what is launched.
        domain: the launch domain; None for a single launch.
        arguments: what was given for each parameter but the colour: tiles, or None for a value.
        values: the arguments given by value, in order.
        mapper: placement of this launch; None for the session's.
        provenance: the source line.
        everywhere: whether one replica runs in every memory, whatever the mapper says.
        must_epoch: whether all points must run at the same time.
    """

    task: Task[..., Any]
    domain: Rect | None
    arguments: tuple[Tiles | None, ...]
    values: tuple[object, ...]
    mapper: Mapper | None = None
    provenance: str = ""
    everywhere: bool = False
    must_epoch: bool = False
    colors: tuple[tuple[int, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        """List the points of the launch domain."""
        object.__setattr__(self, "colors", ((),) if self.domain is None else tuple(self.domain.points()))

    def matches(self, task: Task[..., Any], domain: Domain | None, args: Sequence[object]) -> bool:
        """Whether a launch differs from this one in nothing but its values; cheap, for replays ask it every time."""
        if task is not self.task or len(args) != len(self.arguments):
            return False
        if domain is not self.domain and (domain is None or self.domain is None or bounds(domain) != self.domain):
            return False
        for given, tiles in zip(args, self.arguments, strict=True):
            if tiles is None:
                if isinstance(given, Region | PartitionedRegion | FutureMap):
                    return False
            elif not (tiles.is_of(given) or self._uses_the_same(tiles, given)):
                return False
        return True

    def _uses_the_same(self, tiles: Tiles, given: object) -> bool:
        """Whether an argument that is named otherwise comes to the same rectangles; not cheap."""
        if not isinstance(given, PartitionedRegion):
            return False
        other = Tiles.of(given)
        named = (other.columns, other.several, other.coherence)
        if named != (tiles.columns, tiles.several, tiles.coherence):
            return False
        try:
            return other.rects(self.colors, self.domain) == tiles.rects(self.colors, self.domain)
        except RequestError:  # the launch that is not this one is refused where it is mapped
            return False

    def values_of(self, args: Sequence[object]) -> tuple[object, ...]:
        """The arguments given by value; a future is waited for."""
        given = [value for value, tiles in zip(args, self.arguments, strict=True) if tiles is None]
        return tuple([value.get() if isinstance(value, Future) else value for value in given])

    def key(self) -> tuple[object, ...]:
        """What tells it from launches that it does not match; partitions count by identity."""
        uses = [None if tiles is None else tiles.key() for tiles in self.arguments]
        return (id(self.task), self.domain, *uses)

    def without_values(self) -> Operation:
        """The same launch, for a recording."""
        return replace(self, values=())

    def __str__(self) -> str:
        """Print as `axpy over 4 points (2.0, x#0[4 tiles], y#1[4 tiles])`."""
        over = "" if self.domain is None else f" over {len(self.colors)} points"
        values = iter(self.values)
        shown = (shorten(next(values, ...)) if tiles is None else str(tiles) for tiles in self.arguments)
        return f"{self.task.name}{over} ({', '.join(shown)})"


def shorten(value: object) -> str:
    """Print a launch argument: plain values themselves, of others the type."""
    if value is ...:
        return "a value"
    return repr(value) if isinstance(value, int | float | str | bool | None) else type(value).__name__


def bounds(domain: Domain) -> Rect:
    """A launch domain as a rectangle."""
    if isinstance(domain, Rect):
        return domain
    return Rect.of_shape((domain,) if isinstance(domain, int) else tuple(domain))


def state(
    task: Task[..., Any],
    domain: Domain | None,
    args: Sequence[object],
    mapper: Mapper | None = None,
    *,
    everywhere: bool = False,
    must_epoch: bool = False,
) -> Operation:
    """Take down a launch.

    Raises:
        RequestError: an empty domain, or arguments that do not fit the task.
    """
    space = None if domain is None else bounds(domain)
    if space is not None and space.is_empty:
        msg = f"task {task.name}: the launch domain {space} is empty"
        raise RequestError(msg)
    wanted = [parameter for parameter in task.parameters if not parameter.is_color]
    if len(args) != len(wanted):
        msg = f"task {task} takes {len(wanted)} arguments at launch, got {len(args)}"
        raise RequestError(msg)
    arguments: list[Tiles | None] = []
    values = []
    for parameter, value in zip(wanted, args, strict=True):
        if parameter.privilege is None:
            arguments.append(None)
            values.append(_value(task, parameter.name, value))
        else:
            arguments.append(_tiles(task, parameter.name, value))
    return Operation(task, space, tuple(arguments), tuple(values), mapper, provenance(), everywhere, must_epoch)


def _value(task: Task[..., Any], parameter: str, value: object) -> object:
    if isinstance(value, Region | PartitionedRegion):
        msg = f"task {task}: parameter {parameter} has no privilege, but was given a region"
        raise RequestError(msg)
    if isinstance(value, FutureMap):
        msg = f"task {task}: parameter {parameter} was given a future map; pass one of its values, or its reduce(...)"
        raise RequestError(msg)
    return value.get() if isinstance(value, Future) else value


def _tiles(task: Task[..., Any], parameter: str, value: object) -> Tiles:
    if isinstance(value, Region | PartitionedRegion):
        return Tiles.of(value)
    msg = f"task {task}: parameter {parameter} needs a region or region[partition], got {type(value).__name__}"
    raise RequestError(msg)


def comparable(requirement: Requirement) -> object:
    """Give what ranks compare of a region requirement."""
    places = [
        [column.tobytes() for column in space.columns] if isinstance(space, RectSet) else (*space.lo, *space.hi)
        for space in requirement.rects
    ]
    return (requirement.region.id, str(requirement.privilege), requirement.coherence.value, places)


def handles(args: Sequence[object]) -> Iterator[Region]:
    """Give the regions that launch arguments name."""
    for value in args:
        if isinstance(value, Region):
            yield value
        elif isinstance(value, PartitionedRegion):
            yield value.region


def provenance() -> str:
    """Give the source line that called into this package."""
    frame = sys._getframe(1)  # noqa: SLF001  (the documented way to find a caller without building a traceback)
    package = __name__.partition(".")[0]
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(package):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
