"""Operations: launches as the program states them, before anything is mapped or analysed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, final

from maniple.process.error import RequestError
from maniple.process.python_internals import frame_above
from maniple.regions.index_space import RectSet
from maniple.regions.rectangle import Rect
from maniple.runtime.program.future import Future, FutureMap
from maniple.runtime.program.handle import PartitionedRegion, Region
from maniple.runtime.program.mapper import Mapper, check_mapper
from maniple.runtime.program.region_arguments import RegionArguments
from maniple.runtime.schedule.launch import Requirement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maniple.runtime.program.task import Task

__all__: list[str] = []

Domain = Rect | Sequence[int] | int

PLAIN = frozenset((int, float, bool, str, type(None)))
"""Types of values that are neither futures nor handles."""


KEPT_STATEMENTS = 256
"""A program of ever new launches keeps so many."""


@final
class Key:
    """What tells a launch from others, hashed once.

    Args:
        parts: that, by value.
    """

    __slots__ = ("_hash", "parts")

    def __init__(self, parts: tuple[object, ...]) -> None:
        self.parts = parts
        self._hash = hash(parts)

    def __eq__(self, other: object) -> bool:
        """Whether both tell the same launch."""
        return isinstance(other, Key) and self.parts == other.parts

    def __hash__(self) -> int:
        """A number that equal ones share."""
        return self._hash


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
    arguments: tuple[RegionArguments | None, ...]
    values: tuple[object, ...]
    mapper: Mapper | None = None
    provenance: str = ""
    everywhere: bool = False
    must_epoch: bool = False
    colors: tuple[tuple[int, ...], ...] = field(init=False)
    _count: int = field(init=False)
    _named: tuple[tuple[int, RegionArguments], ...] = field(init=False)
    _given: Callable[[Sequence[Any]], tuple[Any, ...]] = field(init=False)
    _key: Key = field(init=False)
    _shown: tuple[str | None, ...] = field(init=False)

    def __post_init__(self) -> None:
        """List the points of the launch domain, and where among the arguments regions and values are."""
        object.__setattr__(self, "colors", ((),) if self.domain is None else tuple(self.domain.points()))
        named = tuple((index, tiles) for index, tiles in enumerate(self.arguments) if tiles is not None)
        object.__setattr__(self, "_count", len(self.arguments))
        object.__setattr__(self, "_named", named)
        object.__setattr__(self, "_given", picker([i for i, tiles in enumerate(self.arguments) if tiles is None]))
        uses = [None if tiles is None else tiles.key() for tiles in self.arguments]
        object.__setattr__(self, "_key", Key((id(self.task), self.domain, *uses)))
        object.__setattr__(self, "_shown", tuple(None if tiles is None else str(tiles) for tiles in self.arguments))

    def take(self, task: Task[..., Any], domain: Domain | None, args: Sequence[Any]) -> tuple[object, ...] | None:
        """Give the values of a launch that differs from this one in nothing else; None of another launch.

        A replay asks this of every launch, so what is the same object is compared by identity alone. A future among
        the values is waited for.
        """
        if task is not self.task:
            return None
        if len(args) != self._count:
            args = task.complete_arguments(args)
            if len(args) != self._count:
                return None
        if domain is not self.domain and (domain is None or self.domain is None or bounds(domain) != self.domain):
            return None
        try:
            for index, tiles in self._named:
                if args[index].tiles is not tiles and not self._uses(tiles, args[index]):
                    return None
        except AttributeError:  # no handle
            return None
        values = self._given(args)
        for value in values:
            if type(value) not in PLAIN:
                return _await(values)
        return values

    def plainly(self, args: Sequence[object]) -> bool:
        """Whether it was stated with plain values and handles, and with all of its arguments."""
        return len(args) == self._count and all(
            type(value) in PLAIN if tiles is None else getattr(value, "tiles", None) is tiles
            for value, tiles in zip(args, self.arguments, strict=True)
        )

    def _uses(self, tiles: RegionArguments, given: object) -> bool:
        """Whether an argument that is another object, or named otherwise, comes to the same rectangles; not cheap."""
        if not isinstance(given, Region | PartitionedRegion):
            return False
        other = given.tiles
        if other == tiles:
            return True
        if other.partition is None:
            return False
        named = (other.columns, other.several, other.coherence)
        if named != (tiles.columns, tiles.several, tiles.coherence):
            return False
        try:
            return other.rects(self.colors, self.domain) == tiles.rects(self.colors, self.domain)
        except RequestError:  # the launch that is not this one is refused where it is mapped
            return False

    def requirements(self, copies: int = 1, *, fill: bool = False) -> tuple[Requirement, ...]:
        """How its tasks use regions.

        Args:
            copies: how many replicas of each point run.
            fill: whether the tasks give all elements one value, which an instance of a whole region may also get when
                it is made.

        Raises:
            RequestError: a point has no tile.
        """
        found: list[Requirement] = []
        parameters = (parameter for parameter in self.task.parameters if not parameter.is_color)
        for parameter, tiles in zip(parameters, self.arguments, strict=True):
            if tiles is None or parameter.privilege is None:
                continue
            try:
                rects = tiles.rects(self.colors, self.domain) * copies
            except RequestError as error:
                raise RequestError(f"task {self.task}: parameter {parameter.name}: {error}") from error
            fills = fill and self.everywhere and tiles.space == tiles.columns[0].bounds
            use = (parameter.privilege, rects, tiles.coherence, fills)
            found.extend(Requirement(column, *use) for column in tiles.columns)
        return tuple(found)

    def key(self) -> Key:
        """What tells it from launches that it does not match; partitions count by identity."""
        return self._key

    def with_values(self, values: tuple[object, ...]) -> Operation:
        """The same launch with other values; made for each launch of a loop, so nothing is worked out again."""
        made = object.__new__(Operation)
        for name, part in zip(_PARTS, _parts(self), strict=True):
            object.__setattr__(made, name, part)
        object.__setattr__(made, "values", values)
        return made

    def without_values(self) -> Operation:
        """The same launch, for a recording."""
        return self.with_values(())

    def __str__(self) -> str:
        """Print as `axpy over 4 points (2.0, x#0[4 tiles], y#1[4 tiles])`."""
        over = "" if self.domain is None else f" over {len(self.colors)} points"
        values = iter(self.values)
        shown = [shorten(next(values, ...)) if text is None else text for text in self._shown]
        return f"{self.task.name}{over} ({', '.join(shown)})"


_PARTS = tuple(part.name for part in fields(Operation) if part.name != "values")
_parts = attrgetter(*_PARTS)


class Statements:
    """The launches that a program stated, so that one which differs in nothing but values is found and not made again.

    Objects count by identity: those of what is kept are kept, so that no other has their place.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], tuple[object, Operation]] = {}

    def state(
        self,
        task: Task[..., Any],
        domain: Domain | None,
        args: Sequence[Any],
        mapper: Mapper | None,
        check: Callable[[Region], object],
        everywhere: bool = False,  # noqa: FBT001, FBT002  (as in `state`)
        must_epoch: bool = False,  # noqa: FBT001, FBT002
    ) -> Operation:
        """Take down a launch.

        Args:
            task: as in `state`.
            domain: as there.
            args: as there.
            mapper: as there.
            check: refuses a region of another program; asked of what was not stated before.
            everywhere: as there.
            must_epoch: as there.

        Raises:
            RequestError: as there.
        """
        values = tuple([value for value in args if type(value) in PLAIN])
        named = [None if type(value) in PLAIN else id(getattr(value, "tiles", value)) for value in args]
        key = (id(task), id(domain), id(mapper), everywhere, must_epoch, provenance(), *named)
        found = self._kept.get(key)
        if found is not None:
            return found[1].with_values(values)
        for region in handles(args):
            check(region)
        operation = state(task, domain, args, mapper, everywhere=everywhere, must_epoch=must_epoch)
        if operation.plainly(args):
            if len(self._kept) >= KEPT_STATEMENTS:
                self._kept.clear()
            self._kept[key] = (domain, operation.without_values())
        return operation

    def forget(self) -> None:
        """Forget all: regions that are no more may be among what they name."""
        self._kept.clear()


def picker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Give what takes the items at some places, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    if places:
        (only,) = places
        return lambda args: (args[only],)
    return lambda _: ()


def _await(values: Sequence[object]) -> tuple[object, ...] | None:
    """Wait for the futures among values; None if one is no value."""
    if any(isinstance(value, Region | PartitionedRegion | FutureMap) for value in values):
        return None
    return tuple([value.get() if isinstance(value, Future) else value for value in values])


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
    check_mapper(mapper, f"task {task.name}")
    wanted = [parameter for parameter in task.parameters if not parameter.is_color]
    args = task.complete_arguments(args)
    if len(args) != len(wanted):
        msg = f"task {task} takes {len(wanted)} arguments at launch, got {len(args)}"
        raise RequestError(msg)
    arguments: list[RegionArguments | None] = []
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


def _tiles(task: Task[..., Any], parameter: str, value: object) -> RegionArguments:
    if isinstance(value, Region | PartitionedRegion):
        return value.tiles
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
    frame = frame_above(1)
    package = __name__.partition(".")[0]
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(package):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
