"""The analytic cost model: the roofline of every processor, without measuring anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from maniple.runtime.schedule.roofline import bandwidth
from maniple.strategies.cost_model.cost_model import LaunchTasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.launch import Launch
    from maniple.strategies.cost_model.cost_model import Column

__all__: list[str] = []


@final
class Analytic:
    """The roofline of `runtime/schedule/roofline.py`, which orders the rows of a schedule: the same numbers, by launch.

    Args:
        machine: the machine.
    """

    def __init__(self, machine: Machine) -> None:
        self._launch_s = np.asarray([processor.launch_s for processor in machine.processors])
        self._peak = np.asarray([processor.flops_per_s for processor in machine.processors])
        self._bandwidth = np.asarray([bandwidth(machine, processor) for processor in machine.processors])

    def task_ns(self, launch: Launch) -> Column:
        """The nanoseconds of each task of a launch, at least 1."""
        return self.tasks_ns(LaunchTasks.of(launch))

    def tasks_ns(self, tasks: LaunchTasks) -> Column:
        """The same for tasks that are there as arrays."""
        where = tasks.processors
        busy = np.maximum(tasks.flops / (tasks.efficiency * self._peak[where]), tasks.touched / self._bandwidth[where])
        nanoseconds: Column = np.maximum(1, np.rint(1e9 * (self._launch_s[where] + busy))).astype(np.int64)
        return nanoseconds

    def sources(self, tasks: LaunchTasks) -> Sequence[str]:
        """Where the number of each comes from."""
        return ("analytic",) * len(tasks.processors)
