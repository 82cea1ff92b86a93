"""Tasks timed on a GPU as a lane runs them: captured as a CUDA graph, by the device's own clock.

A step runs its tasks as nodes of a graph, each behind the one before; so a task is timed as many nodes of one graph, on
tensors that take turns. What comes out is what a node takes, the way from node to node included. A body that cannot be
captured is timed as a lane would issue it: what its kernels take, or the host to launch them, whichever is more.

    first run      a a' a''           each body, on tensors of its own: kernels compile, libraries choose theirs
    second run     [a a' a'']         captured
    timed          [..] [..] [..]     replayed behind each other, between two events
"""

from __future__ import annotations

import statistics
from itertools import cycle, islice
from typing import TYPE_CHECKING, final

from maniple.runtime.devices.device import Refused
from maniple.runtime.devices.processor import run_as_task
from maniple.runtime.devices.registry import open_device
from maniple.strategies.cost_model.measurement import FOOTPRINT_BYTES, LEAST_S, MOST_COPIES, RUNS, Measurement
from maniple.strategies.cost_model.scratch import measure_scratch
from maniple.strategies.cost_model.timed_body import TimedBody

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.process.taken_memory import Taken
    from maniple.regions.rectangle import Rect
    from maniple.runtime.devices.device import Device
    from maniple.runtime.schedule.launch import Launch

__all__: list[str] = []

NODES = 8
"""Nodes of a graph at least: what a replay costs the host is shared by so many."""
MOST_REPLAYS = 256
"""Replays of a run at most, whatever the first one seemed to take."""


@final
class GpuTimer:
    """What times tasks on a GPU; while it is open, TF32 is off, as in a run.

    Args:
        kind: the device, by its name in the registry.
        capacity: bytes that tensors may take there, in all.

    Raises:
        RequestError: there is no such device here.
    """

    def __init__(self, kind: str, capacity: int) -> None:
        self._device = open_device(kind, 0, capacity)
        self._device.timed = True

    def __call__(
        self,
        launch: Launch,
        point: int,
        cores: int,
        boxes: Sequence[Rect | None],
        footprint: int = FOOTPRINT_BYTES,
    ) -> Measurement:
        """Time a task; the arguments are those of `measure`.

        Raises:
            RequestError: the launch has no body.
        """
        body = TimedBody(launch, point, cores, boxes)
        copies = max(1, min(MOST_COPIES, footprint // max(1, body.size())))
        with self._device.binding(), run_as_task():
            bodies = [body.bind() for _ in range(copies)]
        runs = time_nodes(self._device, list(islice(cycle(bodies), max(NODES, copies))))
        median = statistics.median(runs)
        spread = statistics.median(abs(run - median) for run in runs)
        scratch: list[Taken] = []
        with self._device.binding(), run_as_task():
            views = body.views()
        watch = self._device.watch
        work = lambda: scratch.append(measure_scratch(lambda: body.bind(views), watch))  # noqa: E731
        self._device.tasks.submit(work).wait()
        return Measurement.of(
            launch, point, max(1, round(median)), round(spread), scratch[0]._replace(shared=body.shared_bytes())
        )

    def close(self) -> None:
        """Let go of the device."""
        self._device.close()


def time_nodes(device: Device, bodies: Sequence[Callable[[], object]]) -> list[float]:
    """Give the nanoseconds that a body takes, of several that follow each other on a device, in each of some runs.

    Args:
        device: which one; its events have times.
        bodies: put work into its stream of tasks.
    """
    for body in bodies:  # by itself, as tasks are; what fails is heard of
        device.tasks.submit(body).wait()
    found: list[Callable[[], object]] = []

    def capture() -> None:
        captured = device.capture(bodies)
        found.append((lambda: [body() for body in bodies]) if isinstance(captured, Refused) else captured)

    device.tasks.submit(capture).wait()
    (replay,) = found
    once = max(1, elapsed_ns(device, replay))
    times = min(MOST_REPLAYS, max(1, round(LEAST_S * 1e9 / once)))
    return [elapsed_ns(device, replay, times) / times / len(bodies) for _ in range(RUNS)]


def elapsed_ns(device: Device, replay: Callable[[], object], times: int = 1) -> int:
    """Give the nanoseconds of some replays behind each other, by the device's clock.

    Args:
        device: which one; its events have times.
        replay: puts work into its stream of tasks.
        times: how often.
    """

    def work() -> None:
        for _ in range(times):
            replay()

    end = device.tasks.submit(work)
    end.wait()
    return end.ended_ns - end.begun_ns
