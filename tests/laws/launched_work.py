"""The tasks of drawn programs: they do the same work whatever their privileges, on integers, in any layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch

import maniple as mp
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD, Privilege, reduce
from maniple.runtime.program.task import Task

OR = mp.register_reduction("or", torch.bitwise_or, 0)
PRIVILEGES = (READ, WRITE_DISCARD, READ_WRITE, reduce("+"), reduce("*"), reduce("min"), reduce("max"), OR)
TASKS: dict[tuple[Privilege, ...], Task[..., int]] = {}
FOLDS = {"min": torch.minimum, "max": torch.maximum, "or": torch.bitwise_or}


def work(color: tuple[int, ...], factor: int, privileges: Sequence[Privilege], views: Sequence[torch.Tensor]) -> int:
    """What every task does: what it writes depends on all that it may read, its colour and the place in a tile.

    Args:
        color: the task's point.
        factor: a number of the launch.
        privileges: one for each argument.
        views: the elements of each argument, in one row.
    """
    seed = factor + sum(3 ** (axis + 1) * number for axis, number in enumerate(color))
    for place, (privilege, view) in enumerate(zip(privileges, views, strict=True)):
        if privilege.reads and view.numel():
            weights = torch.arange(1, view.numel() + 1)
            seed += (place + 1) * int((view * weights).sum())
    seed %= 1009
    for place, (privilege, view) in enumerate(zip(privileges, views, strict=True)):
        added = torch.arange(view.numel()) * 7 % 11 + seed % (17 + place)
        if privilege == WRITE_DISCARD:
            view.copy_(added)
        elif privilege == READ_WRITE:
            view.copy_((view * 3 + added) % 100_003)
        elif privilege.op is not None:
            fold(privilege.op.symbol, view, added)
    return seed


def fold(symbol: str, target: torch.Tensor, part: torch.Tensor) -> None:
    if symbol == "+":
        target += part
    elif symbol == "*":
        target *= part
    else:
        target.copy_(FOLDS[symbol](target, part))


def on_elements(
    color: tuple[int, ...], factor: int, privileges: Sequence[Privilege], views: Sequence[torch.Tensor]
) -> int:
    """Do a task's work on the elements that are its own, wherever in the views they are."""
    spaces = [mp.index_space(view) for view in views]
    where = [space.positions() for space in spaces]
    rows = [view[index].reshape(-1).clone() for view, index in zip(views, where, strict=True)]
    found = work(color, factor, privileges, rows)
    for view, index, row, privilege in zip(views, where, rows, privileges, strict=True):
        if privilege != READ:
            view[index] = row if isinstance(index, tuple) else row.reshape(view.shape)
    return found


def task_of(privileges: tuple[Privilege, ...]) -> Task[..., int]:
    """A task with a region argument for each privilege, the same one each time and on every thread."""
    return TASKS.setdefault(privileges, new_task(privileges))


def new_task(privileges: tuple[Privilege, ...]) -> Task[..., int]:
    """A task with a region argument for each privilege."""

    if len(privileges) == 1:

        def body(color: mp.Color, factor: int, a: torch.Tensor) -> int:
            return on_elements(color, factor, privileges, (a,))
    elif len(privileges) == 2:

        def body(color: mp.Color, factor: int, a: torch.Tensor, b: torch.Tensor) -> int:  # type: ignore[misc]
            return on_elements(color, factor, privileges, (a, b))
    else:

        def body(color: mp.Color, factor: int, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> int:  # type: ignore[misc]
            return on_elements(color, factor, privileges, (a, b, c))

    for name, privilege in zip("abc", privileges, strict=False):
        body.__annotations__[name] = Annotated[torch.Tensor, privilege]
    made = mp.task(name=f"work{[str(privilege) for privilege in privileges]}")(body)
    made.variant("cuda")(body)
    return made
