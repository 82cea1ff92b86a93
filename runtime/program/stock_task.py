"""Stock tasks: what `fill`, `write` and `copy` launch, and which regions are copied."""

from __future__ import annotations

from functools import lru_cache

import torch

from maniple.process.error import RequestError
from maniple.runtime.program.handle import PartitionedRegion, Region
from maniple.runtime.program.task import Read, WriteDiscard, task
from maniple.runtime.storage.copy_kernels import torch_dtype

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


def check_fill(value: float, dtype: str) -> None:
    """Refuse a value that a type cannot hold.

    A loop fills with the same value each time, and torch waits for other threads as it makes a tensor.

    Args:
        value: the value.
        dtype: a region's dtype name.

    Raises:
        RequestError: it is no number, too large, or has a fraction where the type has none.
    """
    (_fits if type(value) in {int, float, bool} else _try)(value, dtype)


def _try(value: float, dtype: str) -> None:
    kind = torch_dtype(dtype)
    try:
        held = torch.full((), value, dtype=kind).item()
    except (RuntimeError, TypeError) as error:
        raise RequestError(f"fill: expected a number that {dtype} can hold, got {value!r}") from error
    if not (kind.is_floating_point or kind.is_complex) and held != value:
        raise RequestError(f"fill: expected a number that {dtype} can hold, got {value!r}, which would become {held!r}")


_fits = lru_cache(maxsize=256, typed=True)(_try)  # a value that is refused is not remembered


def check_copy(source: Region | PartitionedRegion, target: Region | PartitionedRegion) -> None:
    """Refuse a copy between regions that differ.

    Raises:
        RequestError: only one of them is partitioned, their shapes differ, one has several fields, or the target's type
            has no place for what the source's may hold, such as fractions.
    """
    here, there = (
        (side.region if isinstance(side, PartitionedRegion) else side).logical.dtype for side in (source, target)
    )
    if not torch.can_cast(torch_dtype(here), torch_dtype(there)):
        raise RequestError(f"copy: {there} cannot hold what {here} may; round or compare in a task of your own")
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
