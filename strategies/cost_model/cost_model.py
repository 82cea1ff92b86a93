"""The interface of cost models, and the tasks that they are asked about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

import numpy as np

from maniple.runtime.schedule.roofline import Kernel, work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.runtime.schedule.launch import Launch

__all__: list[str] = []

Column = np.ndarray[tuple[int], np.dtype[np.int64]]


@final
@dataclass(frozen=True, slots=True, eq=False)
class LaunchTasks:
    """The tasks of one launch as arrays, and the launch for whoever has to run them.

    Args:
        flops: operations of each task.
        touched: bytes that each task reads and writes.
        processors: where each task runs.
        kernel: what their kernels have in common.
        launch: makes the launch.
    """

    flops: np.ndarray[tuple[int], np.dtype[np.float64]]
    touched: Column
    processors: Column
    kernel: Kernel
    launch: Callable[[], Launch]

    @classmethod
    def of(cls, launch: Launch) -> LaunchTasks:
        """The tasks of a launch."""
        return cls(*work(launch), Kernel.of(launch), lambda: launch)


class CostModel(Protocol):
    """What tells how long tasks take."""

    def task_ns(self, launch: Launch) -> Column:
        """The nanoseconds of each task of a launch, at least 1."""
        ...

    def tasks_ns(self, tasks: LaunchTasks) -> Column:
        """The same for tasks that are there as arrays."""
        ...

    def sources(self, tasks: LaunchTasks) -> Sequence[str]:
        """Where the number of each comes from: ``analytic``, ``measured`` or ``interpolated``."""
        ...


@final
@dataclass(frozen=True, slots=True)
class Repeated:
    """What tasks take, timed in several passes over all.

    Args:
        middle: by the middle of the passes.
        passes: by each alone.
    """

    middle: CostModel
    passes: tuple[CostModel, ...]
