"""The analytic cost model: the roofline of every processor, without measuring anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from maniple.runtime.roofline import task_ns

if TYPE_CHECKING:
    from maniple.runtime.launch import Launch
    from maniple.runtime.machine import Machine
    from maniple.strategies.cost_model.cost_model import Column

__all__: list[str] = []


@final
class Analytic:
    """The roofline; see `runtime/roofline.py`, whose numbers also order the rows of a schedule.

    Args:
        machine: the machine.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def task_ns(self, launch: Launch) -> Column:
        """The nanoseconds of each task of a launch, at least 1."""
        return np.asarray(
            [task_ns(launch, point, self._machine) for point in range(len(launch.points))], dtype=np.int64
        )

    def source(self, launch: Launch, point: int) -> str:
        """Where the number of one task comes from."""
        return "analytic"
