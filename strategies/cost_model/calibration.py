"""Calibration: rates of this computer's processors and links, and how well a straight line fits what was measured."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.process.error import RequestError
from maniple.runtime.machine.machine_part import Feed, Rate
from maniple.runtime.schedule.roofline import BANDWIDTH_EFFICIENCY, EFFICIENCY
from maniple.strategies.cost_model.measurement import FOOTPRINT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.runtime.machine.machine import Machine

__all__: list[str] = []

MATRIX, COPIED = 512, 1 << 18
"""Rows of the matrices that are multiplied; elements (float32) of a tile that is copied."""
REPEATS = 7
WARM_UP_S = 0.1
"""Seconds that a processor works before it is measured: the first calls find cold caches and a clock at rest."""


@final
@dataclass(frozen=True, slots=True)
class LinkFit:
    """The line ``latency + bytes / bandwidth`` through measured transfers.

    Args:
        latency_s: seconds.
        bandwidth: bytes per second.
        r_squared: of the times, each relative to itself: 1 is a perfect fit.
        worst: the largest relative distance of a measured time from the line.
    """

    latency_s: float
    bandwidth: float
    r_squared: float
    worst: float


@final
@dataclass(frozen=True, slots=True)
class ProcessorRates:
    """What one processor reaches while all work.

    Args:
        flops_per_s: in a matrix product, float32.
        bandwidth: bytes per second, read and written, in copies of tiles that take turns, as those of a step do.
        contention: how much longer the slower of the two takes than when one processor works alone.
    """

    flops_per_s: float
    bandwidth: float
    contention: float


@final
@dataclass(frozen=True, slots=True)
class GpuRates:
    """What one GPU reaches, and what its host takes to feed it.

    Args:
        products: operations per second of a matrix product by type; ``tf32`` is float32 in tensor cores.
        bandwidth: bytes per second, read and written, in a copy within its memory.
        node_s: seconds of a task of one small kernel that is a node of a graph.
        feed: what its host takes.
    """

    products: dict[str, float]
    bandwidth: float
    node_s: float
    feed: Feed


@final
@dataclass(frozen=True, slots=True)
class TaskFit:
    """How well the measured tasks stand in for those that are not measured.

    Args:
        measured: how many tasks are.
        new: how many of them were not before.
        median: of the relative distances of what others would have a task take from what it takes; None without any.
        ninth_decile: nine of ten are no further off.
        file: where the measurements are kept.
    """

    measured: int
    new: int
    median: float | None
    ninth_decile: float
    file: str


def fit_tasks(measured: int, known: int, errors: Sequence[float], file: str) -> TaskFit:
    """Summarise the errors of interpolation.

    Args:
        measured: how many tasks are measured.
        known: how many were before.
        errors: the relative distances.
        file: where the measurements are kept.
    """
    median, decile = (float(np.quantile(errors, share)) for share in (0.5, 0.9)) if errors else (None, 0.0)
    return TaskFit(measured, measured - known, median, decile, file)


def fit_link(sizes: Sequence[int], seconds: Sequence[float]) -> LinkFit:
    """Fit a line to transfers so that relative errors are small (least squares, each row divided by its time).

    A negative latency or slope, which noise can give, is raised to zero; the other is fitted alone then.

    Args:
        sizes: bytes of each transfer, at least two different ones.
        seconds: how long each took, above 0.

    Raises:
        RequestError: there are too few sizes.
    """
    if len(set(sizes)) < 2:
        raise RequestError(f"calibrate: expected transfers of at least two sizes, got {sorted(set(sizes))}")
    size, taken = np.asarray(sizes, dtype=float), np.asarray(seconds, dtype=float)
    rows = np.stack([1 / taken, size / taken], axis=1)
    (latency, slope), *_ = np.linalg.lstsq(rows, np.ones(len(taken)), rcond=None)
    if latency < 0:
        latency, slope = 0.0, float((rows[:, 1].sum()) / (rows[:, 1] ** 2).sum())
    if slope <= 0:
        latency, slope = float(rows[:, 0].sum() / (rows[:, 0] ** 2).sum()), np.finfo(float).tiny
    line = latency + slope * size
    spread = ((taken - np.exp(np.log(taken).mean())) / taken) ** 2
    left = ((taken - line) / taken) ** 2
    r_squared = 1 - float(left.sum() / spread.sum()) if spread.sum() else 1.0
    return LinkFit(float(latency), float(1 / slope), r_squared, float(np.sqrt(left.max())))


def measure_processor(processors: int, cores: int) -> ProcessorRates:
    """Measure what one of several processors reaches, alone and while all work."""
    import torch

    a, b = torch.rand(MATRIX, MATRIX), torch.rand(MATRIX, MATRIX)
    threads = torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        products = [partial(torch.mm, a, b, out=torch.empty(MATRIX, MATRIX)) for _ in range(processors)]
        copies = [_copies() for _ in range(processors)]
        alone = [_together(products[:1]), _together(copies[:1])]
        loaded = [_together(products), _together(copies)]
    finally:
        torch.set_num_threads(threads)
    slowdown = max(after / before for after, before in zip(loaded, alone, strict=True))
    return ProcessorRates(2 * MATRIX**3 / loaded[0], FOOTPRINT_BYTES / loaded[1], slowdown)


def middle(rounds: Sequence[ProcessorRates]) -> ProcessorRates:
    """The median of each of the rates that were measured at several times."""
    return ProcessorRates(
        *(
            statistics.median(getattr(one, name) for one in rounds)
            for name in ("flops_per_s", "bandwidth", "contention")
        )
    )


def _copies() -> Callable[[], None]:
    """Copies of tiles that read and write as much in all as timed tasks touch before they meet a tensor again."""
    import torch

    size = FOOTPRINT_BYTES // (2 * 4 * COPIED)
    tiles = [(torch.empty(COPIED), torch.rand(COPIED)) for _ in range(size)]

    def copy() -> None:
        for target, source in tiles:
            target.copy_(source)

    return copy


def _together(calls: Sequence[Callable[[], object]]) -> float:
    """The median seconds of a call while the others do theirs."""
    found: list[float] = []
    barrier = threading.Barrier(len(calls))

    def repeat(call: Callable[[], object]) -> None:
        warm = time.perf_counter() + WARM_UP_S
        while time.perf_counter() < warm:
            call()
        for _ in range(REPEATS):
            barrier.wait()
            begun = time.perf_counter()
            call()
            found.append(time.perf_counter() - begun)

    workers = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return statistics.median(found)


def calibrate(machine: Machine, rates: ProcessorRates, link: LinkFit | None, launch_s: float) -> Machine:
    """Give a machine the measured rates, so that its roofline gives what was measured.

    Args:
        machine: the machine, of equal CPU processors.
        rates: of one processor.
        link: of any two memories; None where there is only one.
        launch_s: what starting a task costs.
    """
    sharing = len(machine.processors) // len(machine.memories)
    bandwidth = rates.bandwidth * sharing / BANDWIDTH_EFFICIENCY
    rate = None if link is None else Rate(link.latency_s, link.bandwidth)
    flops = rates.flops_per_s / EFFICIENCY["matmul"]
    return replace(
        machine,
        name="calibrated",
        memories=tuple(replace(memory, bandwidth=bandwidth) for memory in machine.memories),
        processors=tuple(replace(processor, flops_per_s=flops, launch_s=launch_s) for processor in machine.processors),
        within_host=rate or machine.within_host,
        between_hosts=rate or machine.between_hosts,
    )


def calibrate_gpus(machine: Machine, rates: GpuRates, link: LinkFit | None) -> Machine:
    """Give a machine of GPUs the measured rates, so that its roofline gives what was measured.

    Where links were measured, those that a preset knows go: they are not what tiles take.

    Args:
        machine: the machine, of equal GPUs.
        rates: of one.
        link: of any two memories; None where nobody measured it.
    """
    peaks = {dtype: rate / EFFICIENCY["matmul"] for dtype, rate in rates.products.items()}
    own, others = peaks.pop("float32"), tuple(peaks.items())
    bandwidth = rates.bandwidth / BANDWIDTH_EFFICIENCY
    found = replace(
        machine,
        name="calibrated",
        memories=tuple(replace(memory, bandwidth=bandwidth) for memory in machine.memories),
        processors=tuple(
            replace(each, flops_per_s=own, launch_s=rates.node_s, peaks=others, feed=rates.feed)
            for each in machine.processors
        ),
    )
    if link is None:
        return found
    rate = Rate(link.latency_s, link.bandwidth)
    return replace(found, links=(), switches=(), within_host=rate, between_hosts=rate)
