"""Bodies of user tasks: functions bound to views, values and futures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from maniple.regions.error import RunError
from maniple.runtime.kernels import torch_dtype
from maniple.runtime.launch import Requirement
from maniple.runtime.task import Parameter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.runtime.task import Task

__all__: list[str] = []


@dataclass(frozen=True)
class TaskBinder:
    """Binds a task's body for each point of a launch.

    Args:
        task: the task.
        values: for each parameter a Requirement (a view), a Parameter (the colour), or the value itself.
        colors: the points.
        bodies: the chosen variant of each point.
        outcomes: called with what each point returns.
        debug: whether to check that arguments declared as read are left alone.
    """

    task: Task[..., Any]
    values: tuple[object, ...]
    colors: tuple[tuple[int, ...], ...]
    bodies: tuple[Callable[..., object], ...]
    outcomes: tuple[Callable[[object], None], ...]
    debug: bool

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> Callable[[], object]:
        """Bind one point."""
        del cores
        arguments: list[object] = []
        identities: list[tuple[torch.Tensor, float]] = []
        guarded: list[tuple[str, torch.Tensor]] = []
        given = iter(views)
        for parameter, value in zip(self.task.parameters, self.values, strict=True):
            if isinstance(value, Parameter):
                arguments.append(self.colors[point])
            elif isinstance(value, Requirement):
                view = next(given)
                if view is None:
                    view = torch.empty((0,) * value.region.bounds.ndim, dtype=torch_dtype(value.region.dtype))
                elif value.privilege.op is not None:
                    identities.append((view, value.privilege.op.identity(value.region.dtype)))
                elif self.debug and not value.privilege.writes:
                    guarded.append((parameter.name, view))
                arguments.append(view)
            else:
                arguments.append(value)
        body, outcome = self.bodies[point], self.outcomes[point]
        if not guarded and not identities:
            return lambda: outcome(body(*arguments))

        def call() -> None:
            for view, identity in identities:
                view.fill_(identity)
            before = [view.clone() for _, view in guarded]
            found = body(*arguments)
            for (name, view), held in zip(guarded, before, strict=True):
                if not torch.equal(_bits(view), _bits(held)):
                    msg = f"the body wrote its argument {name!r}, which it declares as read; declare it ReadWrite"
                    raise RunError(msg)
            outcome(found)

        return call


def _bits(view: torch.Tensor) -> torch.Tensor:
    """View values as bytes, so that a NaN equals itself."""
    return view.contiguous().reshape(-1).view(torch.uint8)
