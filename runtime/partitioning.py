"""Dependent partitions of a program's regions: computed from the values of a field, the same on every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.regions import dependent
from maniple.regions.error import RequestError
from maniple.regions.rectangle import Rect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.regions.dependent import Values
    from maniple.regions.subspace import Partition
    from maniple.runtime.handle import PartitionedRegion, Region

__all__: list[str] = []


def by_field(field: Region, colors: Rect | Sequence[int] | int) -> Partition:
    """The partition of a region in which each element has the colour that a field of it names.

    The field is read, so this waits for the tasks that write it.

    Args:
        field: one field of whole numbers: each the row-major number of a colour; other numbers name none.
        colors: the colour space, its extents, or how many colours there are.
    """
    space = colors if isinstance(colors, Rect) else Rect.of_shape((colors,) if isinstance(colors, int) else colors)
    return dependent.by_field(field.space, field.read().numpy(), space)


def image(pointers: PartitionedRegion, target: Region) -> Partition:
    """The partition of a region whose colour i has the elements that sub-region i of another points to.

    ``image(wires["to"][pieces], nodes)`` gives each piece the nodes that its wires lead to. The field is read, so this
    waits for the tasks that write it.

    Args:
        pointers: a partitioned field of whole numbers: each the row-major number of an element of the target's whole
            region, or negative for none. Two fields are the first and one past the last pointer of a range.
        target: what is partitioned; what points outside of it is left out.

    Raises:
        RequestError: a pointer is the number of no element.
    """
    frame = target.columns[0].bounds
    return dependent.image(pointers.partition, _values(pointers.region), target.space, frame)


def preimage(pointers: Region, target: PartitionedRegion) -> Partition:
    """The partition of a region whose colour i has the elements that point into sub-region i of another.

    ``preimage(wires["from"], nodes[pieces])`` gives each piece the wires that start in it. The field is read, so this
    waits for the tasks that write it.

    Args:
        pointers: a field of whole numbers, as for :func:`image`, or two of them.
        target: the partitioned region that they point into.

    Raises:
        RequestError: a pointer is the number of no element.
    """
    frame = target.region.columns[0].bounds
    return dependent.preimage(target.partition, _values(pointers), pointers.space, frame)


def _values(pointers: Region) -> list[Values]:
    if len(pointers.columns) > 2:
        msg = f"expected one field of pointers, or two for ranges, got {len(pointers.columns)}: {pointers}"
        raise RequestError(msg)
    fields = [pointers] if pointers.fields is None else [pointers[name] for name in pointers.fields]
    return [field.read().numpy() for field in fields]
