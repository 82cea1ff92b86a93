"""The roofline: how long tasks take by their operations and bytes and their processors' rates, where nobody measured.

    seconds = launch + max(operations / (efficiency * peak), bytes / (efficiency * bandwidth))

The peak is that of the type in which a task computes: the narrowest floating one of what it uses, for a half costs what
a half costs though it is summed in float32. A port of a GPU, which brings a value of the program's or gives it one, is
no part of a captured graph and crosses the bus:

    seconds = max(eager, launch + bytes / bus)        the host launches it while the GPU works on what came before

What comes in is copied by the host first, into memory that the GPU can fetch it from: its bus is both ways in a row.

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
    from collections.abc import Iterable, Mapping, Sequence

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
WIDTHS = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16}
"""Bits of the types that tasks compute in."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Rooflines:
    """What the processors of a machine reach, as columns.

    Args:
        launch_s: seconds until a task begins.
        flops_per_s: the peak.
        bandwidth: bytes per second, read and written: an even share of the memory's.
        peaks: the peaks in other types, where a processor has one of its own.
        eager_s: seconds of a GPU's host for a task by itself.
        buses: by port, bytes per second between program and processor; those of its memory where nobody measured it.
    """

    launch_s: Rates
    flops_per_s: Rates
    bandwidth: Rates
    peaks: Mapping[str, Rates]
    eager_s: Rates
    buses: Mapping[str, Rates]

    @classmethod
    def of(cls, machine: Machine) -> Self:
        """The rooflines of a machine's processors."""
        processors = machine.processors
        memory = np.asarray([processor.memory for processor in processors], dtype=np.int64)
        whole = np.asarray([each.bandwidth for each in machine.memories], dtype=np.float64)
        bandwidth = BANDWIDTH_EFFICIENCY * whole[memory] / np.bincount(memory)[memory]
        feeds = [(each.feed, float(own)) for each, own in zip(processors, bandwidth, strict=True)]
        types = sorted({dtype for processor in processors for dtype, _ in processor.peaks})
        return cls(
            _rates(processor.launch_s for processor in processors),
            _rates(processor.flops_per_s for processor in processors),
            bandwidth,
            {dtype: _rates(processor.peak(dtype) for processor in processors) for dtype in types},
            _rates(feed.eager_s if feed else 0.0 for feed, _ in feeds),
            {
                "in": _rates(1 / (1 / feed.staging + 1 / feed.upload) if feed else own for feed, own in feeds),
                "out": _rates(feed.download if feed else own for feed, own in feeds),
            },
        )


@final
@dataclass(frozen=True, slots=True)
class Kernel:
    """What the tasks of a launch have in common.

    Args:
        efficiency: the part of the peak rate that their kernels reach.
        dtype: the type that they compute in.
        port: see `Launch`.
    """

    efficiency: float
    dtype: str = "float32"
    port: str = ""

    @classmethod
    def of(cls, launch: Launch) -> Self:
        """That of a launch."""
        types = (need.region.dtype for need in launch.requirements)
        return cls(efficiency(launch.kind), launch.multiplies_in or computing_type(types), launch.port)


def computing_type(dtypes: Iterable[str]) -> str:
    """Give the type in which a task computes that uses values of some types: the narrowest floating one."""
    return min((dtype for dtype in dtypes if dtype in WIDTHS), key=WIDTHS.__getitem__, default="float32")


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
    return kernel_ns(reached, Kernel.of(launch), *work(launch))


def launches_ns(launches: Sequence[Launch], reached: Rooflines) -> list[Column]:
    """Give the nanoseconds of each task of each launch, worked out once for launches that are alike."""
    keys: list[tuple[object, ...]] = []
    places: dict[int, bytes] = {}
    alike: dict[tuple[object, ...], Launch] = {}
    for launch in launches:
        if id(launch.points) not in places:
            places[id(launch.points)] = processors_of(launch.points).tobytes()
        uses = tuple([(id(requirement.rects), requirement.region.dtype) for requirement in launch.requirements])
        how = launch.flops, launch.kind, launch.multiplies_in, launch.port
        keys.append((uses, places[id(launch.points)], how))
        alike.setdefault(keys[-1], launch)
    groups: dict[Kernel, dict[tuple[object, ...], tuple[Rates, Column, Column]]] = {}
    for key, launch in alike.items():
        groups.setdefault(Kernel.of(launch), {})[key] = work(launch)
    found: dict[tuple[object, ...], Column] = {}
    for kernel, group in groups.items():
        flops, touched, processors = (np.concatenate(each) for each in zip(*group.values(), strict=True))
        ends = np.cumsum([len(each) for each, _, _ in group.values()])
        times = np.split(kernel_ns(reached, kernel, flops, touched, processors), ends[:-1])
        found.update(zip(group, times, strict=True))
    return [found[key] for key in keys]


def kernel_ns(reached: Rooflines, kernel: Kernel, flops: Rates, touched: Column, processors: Column) -> Column:
    """Give the nanoseconds of tasks by their operations and bytes, at least 1.

    Args:
        reached: by the processors.
        kernel: what they have in common.
        flops: operations of each.
        touched: bytes that each reads and writes.
        processors: where each runs.
    """
    launch_s = reached.launch_s[processors]
    if kernel.port:
        arrived = launch_s + touched / reached.buses[kernel.port][processors]
        return _nanoseconds(np.maximum(reached.eager_s[processors], arrived))
    peak = reached.peaks.get(kernel.dtype, reached.flops_per_s)[processors]
    busy = np.maximum(flops / (kernel.efficiency * peak), touched / reached.bandwidth[processors])
    return _nanoseconds(launch_s + busy)


def fold_ns(reached: Rooflines, touched: Column, processors: Column) -> Column:
    """Give the nanoseconds of folds that read and write so many bytes on some processors, at least 1."""
    return _nanoseconds(reached.launch_s[processors] + touched / reached.bandwidth[processors])


def efficiency(kind: str) -> float:
    """Give the part of the peak rate that the kernels of launches of a kind reach."""
    return EFFICIENCY.get(kind.partition(".")[0], DEFAULT_EFFICIENCY)


def _nanoseconds(seconds: Rates) -> Column:
    whole: Column = np.maximum(1, np.rint(1e9 * seconds)).astype(np.int64)
    return whole


def _rates(values: Iterable[float]) -> Rates:
    return np.asarray(list(values), dtype=np.float64)
