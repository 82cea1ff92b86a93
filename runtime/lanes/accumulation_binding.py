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

    from maniple.runtime.schedule.launch import Binder
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
        schedule, point = self._schedule, int(self._schedule.point[row])
        added = adding(schedule, row)
        if not added:
            return binder(point, views, cores)
        if not needs_scratch(schedule, row, added) and isinstance(binder, Accumulating):
            return binder.bind_adding(point, views, cores, added)
        given, folds, start = list(views), list[Callable[[], object]](), 0
        requirements = schedule.launches[int(schedule.launch[row])].requirements
        for number in sorted(added):
            target = views[number]
            if target is not None:
                scratch, start = self._take(int(schedule.processor[row]), target, start)
                given[number] = scratch
                folds.append(bind_fold(operation(requirements[number]), target, (target, scratch)))
        body = binder(point, given, cores)

        def add() -> None:
            body()
            for fold in folds:
                fold()

        return add

    def _take(self, processor: int, like: torch.Tensor, start: int) -> tuple[torch.Tensor, int]:
        """Give a tensor in a processor's scratch, and where the next one may begin."""
        size = like.numel() * like.element_size()
        if self._sizes is None:
            self._sizes = scratch_bytes(self._schedule)
        if processor not in self._scratch:
            self._scratch[processor] = torch.empty(self._sizes[processor], dtype=torch.uint8, device=like.device)
        found = self._scratch[processor][start : start + size].view(like.dtype).view(like.shape)
        return found, start + aligned(size)
