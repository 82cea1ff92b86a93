"""Stock tasks: what `fill`, `write` and `copy` launch, and which regions are copied."""

from __future__ import annotations

import torch

from maniple.process.error import RequestError
from maniple.runtime.program.handle import PartitionedRegion, Region
from maniple.runtime.program.task import Read, WriteDiscard, task

__all__: list[str] = []


@task(name="fill")
def fill(value: float, x: WriteDiscard) -> None:
    """Write one value to every element."""
    x.fill_(value)


@task(name="write")
def write(values: torch.Tensor, x: WriteDiscard) -> None:
    """Write a tensor."""
    x.copy_(values)


@task(name="copy")
def copy(source: Read, target: WriteDiscard) -> None:
    """Copy one array to another."""
    target.copy_(source)


def check_copy(source: Region | PartitionedRegion, target: Region | PartitionedRegion) -> None:
    """Refuse a copy between regions that differ.

    Raises:
        RequestError: only one of them is partitioned, or their shapes differ.
    """
    if isinstance(source, PartitionedRegion) and isinstance(target, PartitionedRegion):
        shapes = [[tile.shape for tile in side.partition.tiles] for side in (source, target)]
        if source.projection is None and target.projection is None and shapes[0] != shapes[1]:
            raise RequestError(f"copy: the tiles of {source.region} and {target.region} differ in shape")
    elif isinstance(source, PartitionedRegion) or isinstance(target, PartitionedRegion):
        raise RequestError("copy: partition both regions or none")
    elif source.shape != target.shape:
        raise RequestError(f"copy: {source} and {target} differ in shape")


for _task in (fill, write, copy):
    _task.variant("cuda")(_task.function)
