"""The analytic cost model: the roofline of every processor, without measuring anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from maniple.runtime.roofline import bandwidth, efficiency

if TYPE_CHECKING:
    from maniple.runtime.launch import Launch
    from maniple.runtime.machine import Machine
    from maniple.strategies.cost_model.cost_model import Column

__all__: list[str] = []


@final
class Analytic:
    """The roofline of `runtime/roofline.py`, which orders the rows of a schedule: the same numbers, a launch at a time.

    Args:
        machine: the machine.
    """

    def __init__(self, machine: Machine) -> None:
        self._launch_s = np.asarray([processor.launch_s for processor in machine.processors])
        self._peak = np.asarray([processor.flops_per_s for processor in machine.processors])
        self._bandwidth = np.asarray([bandwidth(machine, processor) for processor in machine.processors])

    def task_ns(self, launch: Launch) -> Column:
        """The nanoseconds of each task of a launch, at least 1."""
        where = np.asarray([point.processor for point in launch.points], dtype=np.int64)
        touched = np.zeros(len(where), dtype=np.int64)
        for requirement in launch.requirements:
            touched += np.asarray([rect.volume for rect in requirement.rects]) * requirement.region.itemsize
        flops = np.asarray(launch.flops) if launch.flops else np.zeros(len(where))
        busy = np.maximum(flops / (efficiency(launch) * self._peak[where]), touched / self._bandwidth[where])
        nanoseconds: Column = np.maximum(1, np.rint(1e9 * (self._launch_s[where] + busy))).astype(np.int64)
        return nanoseconds

    def source(self, launch: Launch, point: int) -> str:
        """Where the number of one task comes from."""
        return "analytic"
