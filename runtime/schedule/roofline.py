"""The roofline: how long tasks take by their operations and bytes and their processors' rates, where nobody measured.

    seconds = launch + max(operations / (efficiency * peak), bytes / (efficiency * bandwidth))

After Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures"
(CACM 2009), with a launch floor and, for each operator, the part of the peak that its kernels reach. Tasks and folds
come as columns; schedules are ordered, and searches predict, by the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

import numpy as np

from maniple.runtime.schedule.launch_columns import processors_of, volumes_of

if TYPE_CHECKING:
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.launch import Launch

    Column = np.ndarray[tuple[int], np.dtype[np.int64]]
    Rates = np.ndarray[tuple[int], np.dtype[np.float64]]

__all__: list[str] = []

BANDWIDTH_EFFICIENCY = 0.7
"""The part of the memory's bandwidth that kernels reach (as in Meta's AutoParallel)."""
EFFICIENCY = {
    "linear": 0.7,
    "matmul": 0.7,
    "bmm": 0.6,
    "einsum": 0.6,
    "conv1d": 0.5,
    "conv2d": 0.5,
    "conv3d": 0.5,
    "scaled_dot_product_attention": 0.5,
    "recurrent": 0.5,
}
"""The part of the peak rate that an operator's kernels reach; DEFAULT_EFFICIENCY for all others."""
DEFAULT_EFFICIENCY = 0.3


@final
@dataclass(frozen=True, slots=True, eq=False)
class Rooflines:
    """What the processors of a machine reach, as columns.

    Args:
        launch_s: seconds until a task begins.
        flops_per_s: the peak.
        bandwidth: bytes per second, read and written: an even share of the memory's.
    """

    launch_s: Rates
    flops_per_s: Rates
    bandwidth: Rates

    @classmethod
    def of(cls, machine: Machine) -> Self:
        """The rooflines of a machine's processors."""
        processors = machine.processors
        memory = np.asarray([processor.memory for processor in processors], dtype=np.int64)
        whole = np.asarray([each.bandwidth for each in machine.memories], dtype=np.float64)
        return cls(
            np.asarray([processor.launch_s for processor in processors], dtype=np.float64),
            np.asarray([processor.flops_per_s for processor in processors], dtype=np.float64),
            BANDWIDTH_EFFICIENCY * whole[memory] / np.bincount(memory)[memory],
        )


def work(launch: Launch) -> tuple[Rates, Column, Column]:
    """Give the operations of each task of a launch, the bytes that it reads and writes, and its processor."""
    points = len(launch.points)
    touched = np.zeros(points, dtype=np.int64)
    for requirement in launch.requirements:
        touched += volumes_of(requirement.rects) * requirement.region.itemsize
    flops = np.asarray(launch.flops or (0.0,) * points, dtype=np.float64)
    return flops, touched, processors_of(launch.points)


def task_ns(launch: Launch, reached: Rooflines) -> Column:
    """Give the nanoseconds of each task of a launch, at least 1."""
    return kernel_ns(reached, efficiency(launch.kind), *work(launch))


def kernel_ns(reached: Rooflines, efficiency: float, flops: Rates, touched: Column, processors: Column) -> Column:
    """Give the nanoseconds of tasks by their operations and bytes, at least 1.

    Args:
        reached: by the processors.
        efficiency: the part of the peak that their kernels reach.
        flops: operations of each.
        touched: bytes that each reads and writes.
        processors: where each runs.
    """
    busy = np.maximum(flops / (efficiency * reached.flops_per_s[processors]), touched / reached.bandwidth[processors])
    return _nanoseconds(reached.launch_s[processors] + busy)


def fold_ns(reached: Rooflines, touched: Column, processors: Column) -> Column:
    """Give the nanoseconds of folds that read and write so many bytes on some processors, at least 1."""
    return _nanoseconds(reached.launch_s[processors] + touched / reached.bandwidth[processors])


def efficiency(kind: str) -> float:
    """Give the part of the peak rate that the kernels of launches of a kind reach."""
    return EFFICIENCY.get(kind.partition(".")[0], DEFAULT_EFFICIENCY)


def _nanoseconds(seconds: Rates) -> Column:
    whole: Column = np.maximum(1, np.rint(1e9 * seconds)).astype(np.int64)
    return whole
