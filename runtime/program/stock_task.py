"""Stock tasks: what `fill`, `write` and `copy` launch."""

from __future__ import annotations

import torch

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


for _task in (fill, write, copy):
    _task.variant("cuda")(_task.function)
