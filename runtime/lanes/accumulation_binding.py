"""Bodies that add to what their views hold, bound: in place, or by way of the scratch of their processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from maniple.runtime.schedule.accumulation import adding, aligned, needs_scratch, operation, scratch_bytes
from maniple.runtime.schedule.launch import Accumulating
from maniple.runtime.storage.copy_kernels import bind_fold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.schedule.launch import Binder, Launch
    from maniple.runtime.schedule.schedule import Schedule

__all__: list[str] = []


class AccumulationBinding:
    """Binds the bodies of a schedule's tasks, those that add among them.

    Args:
        schedule: what runs.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._sizes: dict[int, int] | None = None
        self._scratch: dict[int, torch.Tensor] = {}

    def bind(self, row: int, binder: Binder, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind the body of a task to its views."""
        schedule, start = self._schedule, 0
        launch, point = schedule.launches[int(schedule.launch[row])], int(schedule.point[row])
        added, processor = adding(schedule, row), int(schedule.processor[row])

        def take(like: torch.Tensor) -> torch.Tensor:
            nonlocal start
            found, start = self._take(processor, like, start)
            return found

        return bind_added(launch, binder, point, views, cores, added, take)

    def _take(self, processor: int, like: torch.Tensor, start: int) -> tuple[torch.Tensor, int]:
        """Give a tensor in a processor's scratch, and where the next one may begin."""
        size = like.numel() * like.element_size()
        if self._sizes is None:
            self._sizes = scratch_bytes(self._schedule)
        if processor not in self._scratch:
            self._scratch[processor] = torch.empty(self._sizes[processor], dtype=torch.uint8, device=like.device)
        found = self._scratch[processor][start : start + size].view(like.dtype).view(like.shape)
        return found, start + aligned(size)


def bind_added(
    launch: Launch,
    binder: Binder,
    point: int,
    views: Sequence[torch.Tensor | None],
    cores: int,
    added: frozenset[int],
    take: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[], object]:
    """Bind the body of a task that adds to some of its views.

    Args:
        launch: the launch.
        binder: of its bodies.
        point: which of its tasks.
        views: for each requirement what the task sees.
        cores: that its processor owns.
        added: the requirements, by number, to whose views it adds.
        take: gives scratch like a view, where the body cannot add by itself.
    """
    if not added:
        return binder(point, views, cores)
    if not needs_scratch(launch, added) and isinstance(binder, Accumulating):
        return binder.bind_adding(point, views, cores, added)
    given, folds = list(views), list[Callable[[], object]]()
    for number in sorted(added):
        target = views[number]
        if target is not None:
            scratch = given[number] = take(target)
            folds.append(bind_fold(operation(launch.requirements[number]), target, (target, scratch)))
    body = binder(point, given, cores)

    def add() -> None:
        body()
        for fold in folds:
            fold()

    return add
