"""Bodies of user tasks: functions bound to views, values and futures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from maniple.regions.error import RunError
from maniple.runtime.footprint import label, present
from maniple.runtime.kernels import torch_dtype
from maniple.runtime.launch import Requirement
from maniple.runtime.task import Parameter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from maniple.runtime.task import Task

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class Fields:
    """An argument of several fields: the body sees a tuple of views.

    Args:
        requirements: one per field.
    """

    requirements: tuple[Requirement, ...]


@dataclass(frozen=True)
class TaskBinder:
    """Binds a task's body for each point of a launch.

    Args:
        task: the task.
        values: for each parameter a Requirement (a view) or Fields (several), a Parameter (the colour), or the value
            itself.
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
        bound = _Bound(point, iter(views), [], [], [], debug=self.debug)
        for parameter, value in zip(self.task.parameters, self.values, strict=True):
            if isinstance(value, Parameter):
                arguments.append(self.colors[point])
            elif isinstance(value, Requirement):
                arguments.append(bound.view(parameter.name, value))
            elif isinstance(value, Fields):
                arguments.append(tuple(bound.view(parameter.name, one) for one in value.requirements))
            else:
                arguments.append(value)
        body, outcome = self.bodies[point], self.outcomes[point]
        if not (bound.before or bound.after or bound.guarded):
            return lambda: outcome(body(*arguments))

        def call() -> None:
            for prepare in bound.before:
                prepare()
            held = [view.clone() for _, view in bound.guarded]
            found = body(*arguments)
            for (name, view), old in zip(bound.guarded, held, strict=True):
                if not torch.equal(_bits(view), _bits(old)):
                    msg = f"the body wrote its argument {name!r}, which it declares as read; declare it ReadWrite"
                    raise RunError(msg)
            for finish in bound.after:
                finish()
            outcome(found)

        return call


@dataclass(frozen=True, slots=True)
class _Bound:
    """What the arguments of one point come to: calls before and after its body, and views that it must leave alone."""

    point: int
    given: Iterator[torch.Tensor | None]
    before: list[Callable[[], object]]
    after: list[Callable[[], object]]
    guarded: list[tuple[str, torch.Tensor]]
    debug: bool

    def view(self, name: str, requirement: Requirement) -> torch.Tensor:
        """Give the array that the body sees of one requirement."""
        view, privilege, region = next(self.given), requirement.privilege, requirement.region
        space = requirement.rects[self.point]
        if view is None:
            return label(torch.empty((0,) * region.bounds.ndim, dtype=torch_dtype(region.dtype)), space)
        if privilege.op is not None:
            self.before.append(partial(view.fill_, privilege.op.identity(region.dtype)))
            return label(view, space)
        array, load, store = present(view, space, privilege, debug=self.debug)
        if load is not None:
            self.before.append(load)
        if store is not None:
            self.after.append(store)
        if self.debug and not privilege.writes:
            self.guarded.append((name, array))
        return array


def _bits(view: torch.Tensor) -> torch.Tensor:
    """View values as bytes, so that a NaN equals itself."""
    return view.contiguous().reshape(-1).view(torch.uint8)
