"""Bodies of user tasks: functions bound to views, values and futures."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from maniple.regions.index_space import RectSet
from maniple.runtime.program.access_check import CheckedArgument, guard_access
from maniple.runtime.program.variant import CompiledBody
from maniple.runtime.storage.copy_kernels import torch_dtype
from maniple.runtime.storage.footprint import SparseArgument, label

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from maniple.runtime.program.bound_kernel import BoundKernel
    from maniple.runtime.program.launch_execution import Call, Frames
    from maniple.runtime.program.task import Task
    from maniple.runtime.program.value_table import ValueTable
    from maniple.runtime.program.variant import Variant
    from maniple.runtime.schedule.launch import Point, Requirement

__all__: list[str] = []


@dataclass(frozen=True, eq=False, slots=True)
class TaskBinder:
    """Binds a task's body for each point of a launch.

    Values are not bound: each run takes those of its own call, and puts what the body returns there.

    Args:
        task: the task.
        points: the tasks of the launch.
        requirements: those of the launch: one for each field of each parameter with a privilege, in order.
        bodies: the chosen variant of each point.
        frames: the calls of the runs.
        number: which call of a run is this launch's.
        debug: whether to check that arguments are used as they are declared.
        fields: for each parameter with a privilege how many fields its body sees as a tuple, 0 for one by itself; none
            say so of all.
        alone: whether a body may run by itself, as those that wait for each other may not; a check may run one again.
    """

    task: Task[..., Any]
    points: Sequence[Point]
    requirements: tuple[Requirement, ...]
    bodies: tuple[Variant, ...]
    frames: Frames
    number: int
    debug: bool
    fields: tuple[int, ...] = ()
    alone: bool = True

    @property
    def pure(self) -> bool:
        """No: a user's body may do anything."""
        return False

    def eager(self, point: int) -> str:
        """Why a device cannot issue again what it captured of the body; "" where its author says that it may."""
        if not self.bodies[point].captured:
            return "its body is not said to be captured: variant(..., captured=True)"
        values = any(not part.is_color and part.privilege is None for part in self.task.parameters)
        return "it is given values by the program" if values else ""

    def pad(self, point: int) -> None:
        """The memory that a body shares with others: a user's has none."""

    def signature(self, point: int) -> Hashable | None:
        """The body's function, which is not kept for it; compiled code allocates nothing that anybody hears of."""
        variant = self.bodies[point]
        return None if variant.kind.startswith("numba") else weakref.ref(variant.function)

    def __call__(self, point: int, views: Sequence[torch.Tensor | None], cores: int) -> BoundTask:
        """Bind one point."""
        del cores
        variant = self.bodies[point]
        arguments: list[object] = []
        holes: list[int] = []
        seen = _Seen(point, zip(self.requirements, views, strict=True), debug=self.debug, alone=self.alone)
        fields = iter(self.fields)
        for parameter in self.task.parameters:
            if parameter.is_color:
                arguments.append(self.points[point].color)
                continue
            if parameter.privilege is None:
                holes.append(len(arguments))
                arguments.append(None)
                continue
            count = next(fields, 0)
            arrays = tuple([variant.array(seen.next(parameter.name)) for _ in range(count or 1)])
            arguments.append(arrays if count else arrays[0])
        body = guard_access(variant.call, seen.checked) if seen.checked else variant.call
        if seen.private:
            body = _private(body, seen.private)
        return BoundTask(self, point, body, arguments, tuple(enumerate(holes)), tuple(seen.identities))


class _Seen:
    """The arrays that one body sees, and what must be done for them around its runs.

    Args:
        point: which task.
        given: its requirements, each with the view of its elements.
        debug: whether to check what the body does.
        alone: whether it may run by itself.
    """

    def __init__(
        self, point: int, given: Iterator[tuple[Requirement, torch.Tensor | None]], *, debug: bool, alone: bool
    ) -> None:
        self.identities: list[tuple[torch.Tensor, float]] = []
        self.checked: list[CheckedArgument] = []
        self.private: list[SparseArgument] = []
        self._point, self._given, self._debug, self._alone = point, given, debug, alone

    def next(self, parameter: str) -> torch.Tensor:
        """Give the array of the next requirement."""
        requirement, view = next(self._given)
        region, privilege, space = requirement.region, requirement.privilege, requirement.rects[self._point]
        if view is None:
            return label(torch.empty((0,) * region.bounds.ndim, dtype=torch_dtype(region.dtype)), space)
        if privilege.op is not None:
            self.identities.append((view, privilege.op.identity(region.dtype)))
            self._check(parameter, requirement, view)
            return label(view, space)
        if isinstance(space, RectSet) and (privilege.writes or self._debug):
            private = SparseArgument(view, space, privilege, blank=self._debug)
            self.private.append(private)
            view = private.array
        self._check(parameter, requirement, view)
        return label(view, space)

    def _check(self, parameter: str, requirement: Requirement, view: torch.Tensor) -> None:
        privilege = requirement.privilege
        if self._debug and (self._alone or not (privilege.writes or privilege.reduces)):
            space = requirement.rects[self._point]
            self.checked.append(CheckedArgument(parameter, requirement.region.name, view, space, privilege))


class BoundTask:
    """A body with its views, which runs again and again; a slotted object, for a trace may hold a hundred thousand."""

    __slots__ = ("_arguments", "_holes", "_now", "_processor", "body", "frames", "identities", "number", "point")

    def __init__(
        self,
        binder: TaskBinder,
        point: int,
        body: Callable[..., object],
        arguments: list[object],
        holes: tuple[tuple[int, int], ...],
        identities: tuple[tuple[torch.Tensor, float], ...],
    ) -> None:
        self.frames, self._now = binder.frames, binder.frames.now
        self.number, self.point, self._processor = binder.number, point, binder.points[point].processor
        self.body, self._arguments = body, arguments
        self._holes, self.identities = holes, identities

    def __call__(self) -> None:
        """Run it with the values of its call, and put what it returns there."""
        now = self._now.get(self._processor)
        self.run((self.frames.runs[0] if now is None else now)[self.number])

    def run(self, call: Call) -> None:
        """Run it with the values of a call, and put there what it returns; never two at a time."""
        arguments = self._arguments
        for index, hole in self._holes:
            arguments[hole] = call.values[index]
        for view, identity in self.identities:
            view.fill_(identity)
        call.put(self.point, self.body(*arguments))

    def leaf(self, table: ValueTable) -> BoundKernel | None:
        """Bind the compiled body for compiled code to call; None where that cannot be.

        Args:
            table: where the values of a run lie.
        """
        from maniple.runtime.program.bound_kernel import Hole, bind_kernel
        from maniple.runtime.program.value_table import WORD

        if not isinstance(self.body, CompiledBody) or table.offsets[self.number] < 0:
            return None
        arguments, given = list(self._arguments), self.frames.now[self._processor].values[self.number]
        for index, hole in self._holes:
            arguments[hole] = Hole(table.offsets[self.number] + WORD * index, cast("float", given[index]))
        return bind_kernel(self.body, arguments)


def _private(body: Callable[..., object], private: Sequence[SparseArgument]) -> Callable[..., object]:
    """Wrap a body so that it works on copies of its sparse arguments."""

    def call(*arguments: object) -> object:
        for argument in private:
            argument.load()
        found = body(*arguments)
        for argument in private:
            argument.store()
        return found

    return call
