"""The measured cost model: each distinct task is timed once; what is not timed is interpolated, and marked."""

from __future__ import annotations

import hashlib
import time
from bisect import bisect_left, insort
from dataclasses import replace
from functools import partial
from math import inf, log
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.process.taken_memory import Taken
from maniple.runtime.schedule.roofline import Kernel, Rooflines, efficiency, kernel_ns, task_ns
from maniple.strategies.cost_model.measurement import CALLS, FOOTPRINT_BYTES, LEAST_S, frames, measure, task_key, work
from maniple.strategies.cost_model.measurement import read_measurements as read_measurements
from maniple.strategies.cost_model.scratch import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maniple.regions.rectangle import Rect
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.machine.machine_part import Processor
    from maniple.runtime.schedule.launch import Launch
    from maniple.strategies.cost_model.cost_model import Column, LaunchTasks
    from maniple.strategies.cost_model.measurement import Measurement, Measurements, Pass, TaskKey

__all__: list[str] = []

Boxes = dict[int, "tuple[Rect | None, ...]"]

TIME_BOX_S = 60.0
"""Seconds that measuring may take in all, by default."""
PASSES = 3
"""How often a task is timed, in one program or in several, until it is settled, by default."""
RUNOFF_PASSES = 5
"""How often tasks are timed side by side, by default."""


@final
class Measured:
    """Measurements where there are any, else what lies between them, else the roofline.

    A body is what is timed, so a task takes the launch of its processor and what was measured; on a GPU it was timed
    as a node of a graph, and takes that. One that was not
    measured takes, in units of its roofline time, what the measured tasks of the same operator take that are next to it
    in size: the two are weighted by the logarithm of their work. With one neighbour its factor is taken. Where the
    operator was not measured with these attributes, those of its kind with any are its neighbours; with none the factor
    is 1 and the source is ``analytic``.

        work      2^10        2^12          2^14
        factor    1.5         ? = 1.3       1.1       halfway between its neighbours

    Args:
        machine: the machine.
        measurements: those to begin with; new ones are added to it.
        measuring: whether tasks without a measurement are timed, on this computer, while the time box lasts; the cores
            of the machine's other processors, as far as this computer has any, work meanwhile (see `measure`).
        time_box_s: seconds of measuring in all.
        deadline: by the clock; no task is timed that is not expected to be by then.
        passes: how often a task is timed until it is settled.
        footprint: bytes that a step touches.
        back: see `freeze`.
        timer: measures one task; by default on this computer's CPU.
        clock: seconds.
        get_on: called before each timing, for whoever watches that this goes on.
    """

    def __init__(
        self,
        machine: Machine,
        measurements: Measurements,
        *,
        measuring: bool = True,
        time_box_s: float = TIME_BOX_S,
        deadline: float = inf,
        passes: int = PASSES,
        footprint: int = FOOTPRINT_BYTES,
        back: int = 0,
        timer: Callable[[Launch, int, int, Sequence[Rect | None], int], Measurement] | None = None,
        clock: Callable[[], float] = time.monotonic,
        get_on: Callable[[], object] = int,
    ) -> None:
        self.measurements = measurements
        self._machine, self._rooflines = machine, Rooflines.of(machine)
        self._left, self._deadline = time_box_s if measuring else 0.0, deadline
        self._passes, self._footprint, self._back = passes, footprint, back
        self._clock, self._get_on = clock, get_on
        self._cores = sum(processor.cores for processor in machine.processors if processor.kind == "cpu")
        self._timer = timer or partial(_measure_here, self._cores)
        self._factors: dict[tuple[str, str, bool], list[tuple[int, float]]] = {}
        self._processors = {processor.cores: processor.id for processor in reversed(machine.processors)}
        self._unsettled: dict[TaskKey, Callable[[], Measurement]] = {}
        for key, found in sorted(measurements.tasks.items()):
            self._compare(key, found)

    @property
    def measuring(self) -> bool:
        """Whether a task without a measurement would be timed now."""
        return self._left > 0 and (self._deadline == inf or self._clock() < self._deadline)

    def freeze(self, back: int = 0) -> Measured:
        """The same measurements for searches and predictions, which measures nothing.

        Args:
            back: 0 for the middle of the passes, 1 for the last alone, 2 for the one before, and so on; tasks that have
                not so many take the middle of theirs.
        """
        return Measured(self._machine, self.measurements, measuring=False, footprint=self._footprint, back=back)

    def task_ns(self, launch: Launch) -> Column:
        """The nanoseconds of each task of a launch, at least 1."""
        return np.asarray([nanoseconds for nanoseconds, _ in self._estimates(launch)], dtype=np.int64)

    def tasks_ns(self, tasks: LaunchTasks) -> Column:
        """The same for tasks that are there as arrays."""
        return self.task_ns(tasks.launch())

    def sources(self, tasks: LaunchTasks) -> Sequence[str]:
        """Where the number of each comes from: ``measured``, ``interpolated`` or ``analytic``."""
        return [source for _, source in self._estimates(tasks.launch())]

    def scratch(self, launch: Launch) -> Sequence[Taken]:
        """See `ScratchModel.scratch`."""
        boxes, found = self._boxes(launch), []
        for point, place in enumerate(launch.points):
            seen = boxes[self._machine.memory_of(place.processor)]
            key = self._key(launch, point, self._machine.processor(place.processor).cores, seen)
            known = None if key is None else self.measurements.tasks.get(key)
            found.append(NOTHING if known is None else Taken(known.kept, known.peak, known.shared))
        return found

    def _boxes(self, launch: Launch) -> Boxes:
        """By memory, the boxes of the instances that the launch's tasks there see."""
        there: dict[int, list[int]] = {}
        for number, point in enumerate(launch.points):
            there.setdefault(self._machine.memory_of(point.processor), []).append(number)
        return {memory: frames(launch, points) for memory, points in there.items()}

    def _estimates(self, launch: Launch) -> list[tuple[int, str]]:
        """What each task takes, and where that number comes from."""
        boxes, rooflines = self._boxes(launch), task_ns(launch, self._rooflines).tolist()
        return [self._estimate(launch, point, boxes, roofline) for point, roofline in enumerate(rooflines)]

    def _estimate(self, launch: Launch, point: int, boxes: Boxes, roofline: int) -> tuple[int, str]:
        processor = self._machine.processor(launch.points[point].processor)
        cores, seen = processor.cores, boxes[self._machine.memory_of(processor.id)]
        key = self._key(launch, point, cores, seen)
        if key is None:
            return roofline, "analytic"
        found = self.measurements.tasks.get(key)
        told = (roofline, "measured") if found is not None else self._stand_in(key, work(launch, point), roofline)
        if self.measuring and launch.binder is not None and (found is not None or self._is_in_time(told[0])):
            self._unsettled.setdefault(key, partial(self._timer, launch, point, cores, seen, self._footprint))
            if found is None:
                found = self._measure(key)
                self._compare(key, found)
        return told if found is None else (_launch_ns(processor) + found.taken_ns(self._back), "measured")

    def _key(self, launch: Launch, point: int, cores: int, seen: Sequence[Rect | None]) -> TaskKey | None:
        """What determines how long a task takes."""
        return task_key(launch, point, cores, seen, self._footprint, beside=self._cores > cores)

    def _stand_in(self, key: TaskKey, size: int, roofline: int) -> tuple[int, str]:
        """What a task is taken to last that was not timed, and by what."""
        near = next(filter(None, map(self._factors.get, _likes(key))), [])
        factor = _interpolate(near, size)
        return (roofline, "analytic") if factor is None else (max(1, round(roofline * factor)), "interpolated")

    def _is_in_time(self, *tasks_ns: int) -> bool:
        """Whether a pass of tasks that take about so long is over by the deadline."""
        if self._deadline == inf:
            return True
        return self._clock() + CALLS * sum(max(LEAST_S, 1e-9 * one) for one in tasks_ns) < self._deadline

    def settle(self) -> None:
        """Time what was asked for again, all tasks in turn, while the time box lasts; each takes its middle pass.

        A shared computer is slower for seconds at a time, and a task's runs follow each other. Passes that are far
        apart find it in different states, and each finds neighbouring tasks in the same:

            pass      1 (slow)   2     3     middle
            conv2d    9.8        7.0   7.1   7.1
            linear    3.1        2.4   2.2   2.4

        Passes of earlier programs count. What the time box leaves out is for a later one.
        """
        for _ in range(self._passes - 1):
            self.again()
        self._let_go()

    def side_by_side(self, passes: int = RUNOFF_PASSES) -> int:
        """Time what was asked for anew, all tasks in turn; earlier passes count no more.

        Those are of different minutes, and a shared computer is slower for minutes, too: of two plans whose tasks were
        timed hours apart, the one of the faster hour looks faster.

            pass         1     2     3        1     2     3     4
            by sample    2.2   2.0   2.2      2.3   2.0   1.9   2.0
            by head      1.4   1.5   2.0      2.2   2.0   2.0   1.9
                         minutes apart        side by side

        Nothing is timed where each task has as many passes of one runoff. Earlier passes stay where the time box leaves
        fewer than settle a task.

        Args:
            passes: how many.

        Returns:
            How many of the last passes of each task were made side by side.
        """
        tasks, made = self.measurements.tasks, 0
        fresh: dict[TaskKey, tuple[Pass, ...]] = dict.fromkeys(self._unsettled, ())
        runoffs = {tasks[key].runoff for key in fresh}
        if len(runoffs) == 1 and all(runoffs) and all(len(tasks[key].passes) >= passes for key in fresh):
            self._let_go()
            return passes
        while made < passes and self.measuring and self._is_in_time(*(tasks[key].median_ns for key in fresh)):
            fresh = {key: (*found, *self._time(key).passes) for key, found in fresh.items()}
            made += 1
        runoff = hashlib.blake2b(repr(sorted(fresh.items())).encode(), digest_size=8).hexdigest()
        for key, found in fresh.items():
            held = tasks[key]
            if made < self._passes:
                tasks[key] = replace(held, passes=held.passes + found, runoff="")
            else:
                tasks[key] = replace(held, passes=found, dropped=held.timed, runoff=runoff)
        self._let_go()
        return made

    def _let_go(self) -> None:
        """Forget how tasks are timed, which holds launches, and compare what they take with their roofline."""
        self._unsettled.clear()
        self._factors.clear()
        for key, found in sorted(self.measurements.tasks.items()):
            self._compare(key, found)

    def again(self) -> None:
        """One pass of those over what was asked for, for programs that do something else between passes."""
        for key in self._unsettled:
            held = self.measurements.tasks[key]
            if self.measuring and len(held.passes) < self._passes and self._is_in_time(held.median_ns):
                self._measure(key)

    def _measure(self, key: TaskKey) -> Measurement:
        """What a task's passes come to, after one more."""
        timed, held = self._time(key), self.measurements.tasks.get(key)
        found = timed if held is None else replace(held, passes=held.passes + timed.passes, runoff="")
        self.measurements.tasks[key] = found
        return found

    def _time(self, key: TaskKey) -> Measurement:
        """One pass of a task."""
        self._get_on()
        begun = self._clock()
        timed = self._unsettled[key]()
        self._left -= self._clock() - begun
        return timed

    def errors(self) -> list[float]:
        """How far off interpolation is, relative to what was measured, for each task that others can stand in for."""
        found = []
        for key, measured in sorted(self.measurements.tasks.items()):
            for like in _likes(key)[:2]:
                own = (measured.work, self._factor(key, measured)) if key.cores in self._processors else None
                others = [factor for factor in self._factors.get(like, []) if factor != own]
                factor = _interpolate(others, measured.work)
                if own is not None and factor is not None:
                    found.append(abs(factor - own[1]) / own[1])
                    break
        return found

    def _compare(self, key: TaskKey, found: Measurement) -> None:
        """Remember how many times its roofline time a task takes, where a processor here has as many cores."""
        if key.cores in self._processors and found.work:
            factor = self._factor(key, found)
            for like in _likes(key)[:2]:
                insort(self._factors.setdefault(like, []), (found.work, factor))

    def _factor(self, key: TaskKey, found: Measurement) -> float:
        processor = self._machine.processor(self._processors[key.cores])
        flops, touched, where = np.asarray([found.flops]), np.asarray([found.touched]), np.asarray([processor.id])
        kernel = Kernel(efficiency(key.kind), key.dtype)
        (roofline,) = kernel_ns(self._rooflines, kernel, flops, touched, where).tolist()
        return float((_launch_ns(processor) + found.median_ns) / roofline)


def _measure_here(
    all_cores: int, launch: Launch, point: int, cores: int, boxes: Sequence[Rect | None], footprint: int
) -> Measurement:
    """Time a task on this computer's CPU, while the other cores of the machine work."""
    return measure(launch, point, cores, boxes, footprint, others=max(0, all_cores - cores))


def _likes(key: TaskKey) -> tuple[tuple[str, str, bool], ...]:
    """What tasks that can stand in for another have in common with it, the nearest first."""
    return tuple((key.kind, body, beside) for beside in (key.beside, not key.beside) for body in (key.body, ""))


def _launch_ns(processor: Processor) -> int:
    """What a launch adds to a timed body; on a GPU nothing, for it was timed as a node of a graph."""
    return 0 if processor.kind == "gpu" else round(1e9 * processor.launch_s)


def _interpolate(factors: list[tuple[int, float]], size: int) -> float | None:
    """Give the factor at a size between those at other sizes, ascending."""
    if not factors:
        return None
    place = bisect_left(factors, (size, 0.0))
    if place in (0, len(factors)):
        return factors[min(place, len(factors) - 1)][1]
    (low, below), (high, above) = factors[place - 1], factors[place]
    share = (log(size) - log(low)) / (log(high) - log(low))
    return below + share * (above - below)
