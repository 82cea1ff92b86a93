"""Bodies of user tasks: functions bound to views, values and futures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from maniple.regions.error import RunError
from maniple.runtime.kernels import torch_dtype
from maniple.runtime.launch import Requirement
from maniple.runtime.task import Parameter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.runtime.call import Frames
    from maniple.runtime.task import Task

__all__: list[str] = []


@dataclass(frozen=True, eq=False, slots=True)
class TaskBinder:
    """Binds a task's body for each point of a launch.

    Values are not bound: each run takes those of its own call, and puts what the body returns there.

    Args:
        task: the task.
        arguments: for each parameter a Requirement (a view), a Parameter (the colour), or None (a value of the call).
        colors: the points.
        bodies: the chosen variant of each point.
        frames: the calls of the runs.
        number: which call of a run is this launch's.
        debug: whether to check that arguments declared as read are left alone.
    """

    task: Task[..., Any]
    arguments: tuple[Requirement | Parameter | None, ...]
    colors: tuple[tuple[int, ...], ...]
    bodies: tuple[Callable[..., object], ...]
    frames: Frames
    number: int
    debug: bool

    def within(self, frames: Frames, number: int) -> TaskBinder:
        """The same launch as part of a sequence that runs again and again."""
        return replace(self, frames=frames, number=number)

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind one point."""
        del cores
        arguments: list[object] = []
        holes: list[int] = []
        identities: list[tuple[torch.Tensor, float]] = []
        guarded: list[tuple[str, torch.Tensor]] = []
        given = iter(views)
        for parameter, argument in zip(self.task.parameters, self.arguments, strict=True):
            if argument is None:
                holes.append(len(arguments))
                arguments.append(None)
            elif isinstance(argument, Parameter):
                arguments.append(self.colors[point])
            else:
                view = next(given)
                if view is None:
                    view = torch.empty((0,) * argument.region.bounds.ndim, dtype=torch_dtype(argument.region.dtype))
                elif argument.privilege.op is not None:
                    identities.append((view, argument.privilege.op.identity(argument.region.dtype)))
                elif self.debug and not argument.privilege.writes:
                    guarded.append((parameter.name, view))
                arguments.append(view)
        body = _guarded(self.bodies[point], guarded) if guarded else self.bodies[point]
        return self._bound(point, body, arguments, tuple(enumerate(holes)), identities)

    def _bound(
        self,
        point: int,
        body: Callable[..., object],
        arguments: list[object],
        holes: Sequence[tuple[int, int]],
        identities: Sequence[tuple[torch.Tensor, float]],
    ) -> Callable[[], object]:
        number, runs, turn = self.number, self.frames.runs, self.frames.turn
        turns = len(runs)

        def run() -> None:
            nonlocal turn
            call = runs[turn][number]
            turn = (turn + 1) % turns
            for index, hole in holes:
                arguments[hole] = call.values[index]
            for view, identity in identities:
                view.fill_(identity)
            call.put(point, body(*arguments))

        return run


def _guarded(body: Callable[..., object], reads: Sequence[tuple[str, torch.Tensor]]) -> Callable[..., object]:
    """Wrap a body so that it fails if it writes what it may only read."""

    def checked(*arguments: object) -> object:
        before = [view.clone() for _, view in reads]
        found = body(*arguments)
        for (name, view), held in zip(reads, before, strict=True):
            if not torch.equal(_bits(view), _bits(held)):
                msg = f"the body wrote its argument {name!r}, which it declares as read; declare it ReadWrite"
                raise RunError(msg)
        return found

    return checked


def _bits(view: torch.Tensor) -> torch.Tensor:
    """View values as bytes, so that a NaN equals itself."""
    return view.contiguous().reshape(-1).view(torch.uint8)
