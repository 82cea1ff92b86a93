"""The roofline: how long a task takes by its operations, its bytes and its processor's rates, where nobody measured.

    seconds = launch + max(operations / (efficiency * peak), bytes / (efficiency * bandwidth))

After Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures"
(CACM 2009), with a launch floor and, for each operator, the part of the peak that its kernels reach.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.machine.machine_part import Processor
    from maniple.runtime.schedule.launch import Launch

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


def task_ns(launch: Launch, point: int, machine: Machine) -> int:
    """Give the nanoseconds of one task of a launch, at least 1."""
    processor = machine.processor(launch.points[point].processor)
    touched = sum(requirement.rects[point].volume * requirement.region.itemsize for requirement in launch.requirements)
    flops = launch.flops[point] if launch.flops else 0.0
    return kernel_ns(launch.kind, flops, touched, machine, processor)


def kernel_ns(kind: str, flops: float, touched: int, machine: Machine, processor: Processor) -> int:
    """Give the nanoseconds of a task of a kind by its operations and bytes, at least 1."""
    busy = max(flops / (_efficiency(kind) * processor.flops_per_s), touched / bandwidth(machine, processor))
    return max(1, round(1e9 * (processor.launch_s + busy)))


def efficiency(launch: Launch) -> float:
    """Give the part of the peak rate that the kernels of a launch reach."""
    return _efficiency(launch.kind)


def _efficiency(kind: str) -> float:
    return EFFICIENCY.get(kind.partition(".")[0], DEFAULT_EFFICIENCY)


def fold_ns(touched: int, machine: Machine, processor: Processor) -> int:
    """Give the nanoseconds of a fold that reads and writes so many bytes, at least 1."""
    return max(1, round(1e9 * (processor.launch_s + touched / bandwidth(machine, processor))))


def bandwidth(machine: Machine, processor: Processor) -> float:
    """Give the bytes per second that a processor reaches: an even share of its memory's."""
    sharing = len(machine.processors_of(processor.memory))
    return BANDWIDTH_EFFICIENCY * machine.memories[processor.memory].bandwidth / sharing
