"""The analytic cost model: the roofline of every processor, without measuring anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from maniple.runtime.schedule.roofline import Rooflines, kernel_ns, task_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.launch import Launch
    from maniple.strategies.cost_model.cost_model import Column, LaunchTasks

__all__: list[str] = []


@final
class Analytic:
    """The roofline of `runtime/schedule/roofline.py`, by which the rows of a schedule are ordered.

    Args:
        machine: the machine.
    """

    def __init__(self, machine: Machine) -> None:
        self._rooflines = Rooflines.of(machine)

    def task_ns(self, launch: Launch) -> Column:
        """The nanoseconds of each task of a launch, at least 1."""
        return task_ns(launch, self._rooflines)

    def tasks_ns(self, tasks: LaunchTasks) -> Column:
        """The same for tasks that are there as arrays."""
        return kernel_ns(self._rooflines, tasks.kernel, tasks.flops, tasks.touched, tasks.processors)

    def sources(self, tasks: LaunchTasks) -> Sequence[str]:
        """Where the number of each comes from."""
        return ("analytic",) * len(tasks.processors)
