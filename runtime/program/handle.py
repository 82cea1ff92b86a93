"""Handles: the regions of a running program, as its author names them in launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, overload

from maniple.process.error import RequestError, nearest
from maniple.regions import dependent
from maniple.regions.partition import Partition, Partitioning
from maniple.regions.privilege import Coherence
from maniple.regions.rectangle import Rect
from maniple.runtime.program.projection import Point, Projection, Shift, UserProjection
from maniple.runtime.program.region_arguments import RegionArguments

if TYPE_CHECKING:
    import torch

    from maniple.regions.dependent import Values
    from maniple.regions.index_space import IndexSpace
    from maniple.regions.logical_region import LogicalRegion

__all__: list[str] = []

# Partitions of one region that are remembered, so that naming them again in a loop costs nothing.
KEPT_PARTITIONS = 64


class Holder(Protocol):
    """The program that a region belongs to."""

    def fill(self, target: Region | PartitionedRegion, value: float) -> None:
        """Write one value to every element."""
        ...

    def write(self, region: Region, values: torch.Tensor) -> None:
        """Write a whole tensor."""
        ...

    def read(self, region: Region) -> torch.Tensor:
        """Bring the whole region here."""
        ...


@dataclass(frozen=True, eq=False)
class Region:
    """A logical region of a session's program, a sub-region of one, or some fields of either.

    ``region[partition]`` names a sub-region per point of a launch, and ``region[partition][color]`` is one of them: a
    region that can be partitioned again. ``region["voltage"]`` is one field, ``region["voltage", "charge"]`` are two.

    Args:
        session: the program.
        columns: the fields: each is a logical region of its own, with its own instances and dependences.
        space: the elements.
        fields: the names of the columns; None for a single one, of which a task's body sees the array itself.
        coherence: how tasks that use the same elements are ordered.
        root: the region that the program made, of which this is a part; freed when nothing names a part of it.
    """

    session: Holder
    columns: tuple[LogicalRegion, ...]
    space: IndexSpace
    fields: tuple[str, ...] | None = None
    coherence: Coherence = Coherence.EXCLUSIVE
    root: Region | None = None
    _bound: dict[tuple[int, IndexSpace], tuple[Partitioning, Partition]] = field(
        default_factory=dict, init=False, repr=False
    )
    _named: dict[tuple[int, Projection | None], RegionArguments] = field(default_factory=dict, init=False, repr=False)
    tiles: RegionArguments = field(init=False, repr=False)
    """What a launch with this argument names."""

    def __post_init__(self) -> None:
        """Make the tiles, which every launch looks at, an attribute like any other."""
        found = RegionArguments(self.columns, self.space, self.fields is not None, self.coherence)
        object.__setattr__(self, "tiles", found)

    @overload
    def __getitem__(self, chosen: str | tuple[str, ...]) -> Region: ...
    @overload
    def __getitem__(self, chosen: Partitioning | Partition) -> PartitionedRegion: ...

    def __getitem__(self, chosen: Partitioning | Partition | str | tuple[str, ...]) -> Region | PartitionedRegion:
        """Choose fields, or partition the region for a launch.

        Raises:
            RequestError: there is no such field, or the partition is not one of this region.
        """
        if isinstance(chosen, Partitioning | Partition):
            return PartitionedRegion(self, self.partition(chosen))
        names = (chosen,) if isinstance(chosen, str) else chosen
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise RequestError(
                f"{self} is indexed by a partition or by fields, got {chosen!r}; for elements read() it, or launch on "
                "a tile: region[mp.blocks(2)][0]"
            )
        known = self.fields or ()
        for name in names:
            if name not in known:
                msg = f"region {self.columns[0].name} has no field {name!r}"
                raise RequestError(msg + (nearest(name, known) if known else "; it was made without fields"))
        columns = tuple(self.columns[known.index(name)] for name in names)
        return replace(self, columns=columns, fields=None if isinstance(chosen, str) else names, root=self._root)

    def partition(self, partitioning: Partitioning | Partition) -> Partition:
        """Give the partition of this region that a recipe makes.

        Raises:
            RequestError: the recipe does not fit, or it is a partition of other elements already.
        """
        if isinstance(partitioning, Partitioning):
            kept, name = self._root._bound, (id(partitioning), self.space)  # noqa: SLF001  (another of its own kind)
            if name not in kept:
                if len(kept) >= KEPT_PARTITIONS:
                    kept.clear()
                # The recipe is kept with its tiles, so that its id stays its own.
                kept[name] = (partitioning, partitioning.bind(self.space))
            return kept[name][1]
        if partitioning.parent != self.space:
            msg = f"{self} was given a partition of {partitioning.parent}; partition {self.space}"
            raise RequestError(msg)
        return partitioning

    def by_field(self, colors: Rect | Sequence[int] | int) -> Partition:
        """Give the partition in which each element has the colour that its value in this field names.

        The field is read, so this waits for the tasks that write it.

        Args:
            colors: the colour space, its extents, or how many colours there are. A value is the row-major number of a
                colour; other numbers name none.
        """
        space = colors if isinstance(colors, Rect) else Rect.of_shape((colors,) if isinstance(colors, int) else colors)
        return dependent.by_field(self.space, self.read().numpy(), space)

    def pointers(self) -> list[Values]:
        """Read a field of pointers, or two: the first and one past the last pointer of a range.

        Raises:
            RequestError: there are more fields.
        """
        if len(self.columns) > 2:
            msg = f"expected one field of pointers, or two for ranges, got {len(self.columns)}: {self}"
            raise RequestError(msg)
        fields = [self] if self.fields is None else [self[name] for name in self.fields]
        return [field.read().numpy() for field in fields]

    @property
    def logical(self) -> LogicalRegion:
        """The logical region of a single field.

        Raises:
            RequestError: there are several fields.
        """
        if len(self.columns) != 1:
            msg = f"{self} has several fields; name one, as in region[{(self.fields or ('',))[0]!r}]"
            raise RequestError(msg)
        return self.columns[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the bounds."""
        return self.space.bounds.shape

    @property
    def atomic(self) -> Region:
        """The region under atomic coherence: overlapping points of one launch run one after the other."""
        return replace(self, coherence=Coherence.ATOMIC, root=self._root)

    @property
    def simultaneous(self) -> Region:
        """The region under simultaneous coherence: tasks of one memory use it at once and keep order themselves."""
        return replace(self, coherence=Coherence.SIMULTANEOUS, root=self._root)

    def fill(self, value: float) -> None:
        """Write one value to every element; an instance gets it when it is made, so nothing moves."""
        self.session.fill(self, value)

    def write(self, values: torch.Tensor) -> None:
        """Write a whole tensor of the shape of the bounds, the same on every rank."""
        self.session.write(self, values)

    def read(self) -> torch.Tensor:
        """Bring the whole region to every rank and wait for it; between the elements of a sparse one are zeros.

        Raises:
            RequestError: something was never written.
        """
        return self.session.read(self)

    @property
    def _root(self) -> Region:
        return self.root or self

    def __repr__(self) -> str:
        """Print what `str` gives."""
        return f"<{self}>"

    def __str__(self) -> str:
        """Print name, elements and type."""
        if len(self.columns) == 1 and self.space == self.columns[0].bounds:
            return str(self.columns[0])
        names = ", ".join(column.name for column in self.columns)
        return f"{names}{self.space}"


@dataclass(frozen=True, eq=False, slots=True)
class PartitionedRegion:
    """A region and a partition of it: point i of a launch uses sub-region i.

    Args:
        region: the region.
        partition: its sub-spaces by colour.
        projection: which tile a point uses; None for its own.
    """

    region: Region
    partition: Partition
    projection: Projection | None = None
    tiles: RegionArguments = field(init=False, repr=False)
    """What a launch with this argument names; the same object for the same region, partition and projection."""

    def __post_init__(self) -> None:
        """Find the tiles."""
        known, name = self.region._named, (id(self.partition), self.projection)  # noqa: SLF001  (the region is its part)
        if name not in known:
            if len(known) >= KEPT_PARTITIONS:
                known.clear()
            # The tiles keep the partition, so that its id stays its own.
            known[name] = replace(self.region.tiles, partition=self.partition, projection=self.projection)
        object.__setattr__(self, "tiles", known[name])

    def __getitem__(self, color: int | tuple[int, ...]) -> Region:
        """Choose one sub-region: for a single launch, or to be partitioned again."""
        chosen = (color,) if isinstance(color, int) else color
        return replace(self.region, space=self.partition.tile(chosen), root=self.region.root or self.region)

    def image(self, target: Region) -> Partition:
        """Give the partition of another region whose colour i has the elements that sub-region i points to.

        ``wires["to"][pieces].image(nodes)`` gives each piece the nodes that its wires lead to. The field is read, so
        this waits for the tasks that write it.

        Args:
            target: what is partitioned; what points outside of it is left out. A pointer is the row-major number of an
                element of the whole region, or negative for none; two fields are ranges.

        Raises:
            RequestError: a pointer is the number of no element.
        """
        frame = target.columns[0].bounds
        return dependent.image(self.partition, self.region.pointers(), target.space, frame)

    def preimage(self, pointers: Region) -> Partition:
        """Give the partition of another region whose colour i has the elements that point into sub-region i.

        ``nodes[pieces].preimage(wires["from"])`` gives each piece the wires that start in it. The field is read, so
        this waits for the tasks that write it.

        Args:
            pointers: a field of pointers into this region, or two, as for :meth:`image`.

        Raises:
            RequestError: a pointer is the number of no element.
        """
        frame = self.region.columns[0].bounds
        return dependent.preimage(self.partition, pointers.pointers(), pointers.space, frame)

    def __repr__(self) -> str:
        """Print the region and the colours of its tiles."""
        projected = "" if self.projection is None else ", projected"
        return f"<{self.region} in tiles {self.partition.colors}{projected}>"

    @property
    def atomic(self) -> PartitionedRegion:
        """The same under atomic coherence: overlapping points of one launch run one after the other."""
        return replace(self, region=self.region.atomic)

    @property
    def simultaneous(self) -> PartitionedRegion:
        """The same under simultaneous coherence: tasks of one memory use it at once and keep order themselves."""
        return replace(self, region=self.region.simultaneous)

    def shift(self, *offset: int, periodic: bool = False) -> PartitionedRegion:
        """Have every point use the tile at an offset from its own.

        Args:
            offset: one number per axis of the colours.
            periodic: whether colours wrap around; otherwise a point whose tile would lie outside sees an empty tensor.
        """
        return replace(self, projection=Shift(offset, periodic))

    def project(self, function: Callable[[Point], Point | int | None]) -> PartitionedRegion:
        """Have every point use the tile whose colour a function gives, or none where that gives None.

        Args:
            function: of the point alone; every rank asks it and must hear the same.
        """
        return replace(self, projection=UserProjection(function))
