"""Measurements of tasks: what was timed, by what determines it, and the file that keeps them."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from math import log2, prod
from typing import TYPE_CHECKING, NamedTuple, Self, final

from maniple.operators.proving.user_operator import UserOperator
from maniple.process.file_entry import read_json, write_atomically
from maniple.process.host_allocation import watch_host_run
from maniple.process.inventory import spare_cores
from maniple.process.malloc_tuning import keep_freed
from maniple.process.taken_memory import Taken
from maniple.runtime.devices.registry import CPU
from maniple.runtime.schedule.accumulation import joining
from maniple.runtime.schedule.roofline import computing_type
from maniple.runtime.storage.copy_kernels import torch_dtype
from maniple.strategies.cost_model.background_load import load_cores
from maniple.strategies.cost_model.body_name import body_name, is_written_by_user
from maniple.strategies.cost_model.measured_device import name_device, name_software
from maniple.strategies.cost_model.peer import MOST_PEERS, Peers
from maniple.strategies.cost_model.scratch import NOTHING, measure_scratch
from maniple.strategies.cost_model.timed_body import TimedBody

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.process.file_entry import Entry
    from maniple.regions.rectangle import Rect
    from maniple.runtime.schedule.launch import Launch
    from maniple.strategies.cost_model.body_name import Nameless

__all__: list[str] = []

VERSION = 9
"""The version of the file."""
WHOLE = ("work", "touched", "dropped", "kept", "peak", "shared")
FIELDS = ("kind", "body", "shapes", "cores", "footprint", "beside", "passes", "flops", "runoff", *WHOLE)
"""Of a task in it; those that are whole numbers."""
WARM_UP, RUNS, LEAST_S = 1, 3, 2e-3
"""Calls before timing; timed runs of a pass, each of as many calls as take LEAST_S."""
CALLS = WARM_UP + 1 + (RUNS - 1) + RUNS + 1
"""Calls of a task in a pass where each takes longer than that: to warm up, to see how long one takes, to touch further
tensors, timed, and to see what it takes of memory."""
FOOTPRINT_BYTES, MOST_COPIES = 1 << 26, 64
"""What calls touch at least before they come back to the same tensors, and the most copies of them."""
MOST_BYTES = 1 << 28
"""No step is taken to touch more: no cache holds so much, and what is timed would have to be written first."""
PER_WEIGHT, PER_ACTIVATION = 4, 2
"""How often a step has a weight (its value, what another processor reads of it, its gradient, its momentum), and an
activation (its value and gradient)."""


@final
@dataclass(frozen=True, slots=True, order=True)
class TaskKey:
    """What determines how long a task takes on one device.

    Args:
        kind: the operator and what is computed of it, such as ``conv2d.forward``.
        body: the operator with its attributes, or the optimizer, by name.
        shapes: of each view, such as ``64x3x32x32:float32``, or ``64x3x16x32/64x3x32x32:float32`` where it is a part
            of an instance; ``+`` before one to which the task adds, and ``-`` for one that it does not use.
        cores: that the processor owns.
        footprint: bytes that were touched before the task met a tensor again.
        beside: whether other processors worked meanwhile.
        lasts: whether the same key means the same code in another program. A body that a user wrote may call functions
            and hold values that no hash of it covers.
        nameless: what of the body has no name.
    """

    kind: str
    body: str
    shapes: tuple[str, ...]
    cores: int
    footprint: int = FOOTPRINT_BYTES
    beside: bool = False
    lasts: bool = True
    nameless: tuple[Nameless, ...] = ()

    @property
    def dtype(self) -> str:
        """The type that the task computes in."""
        return computing_type(shape.rpartition(":")[2] for shape in self.shapes)


@final
@dataclass(frozen=True, slots=True)
class Pass:
    """Runs of a task that followed each other.

    Args:
        median_ns: the middle of the runs.
        spread_ns: the median distance of the runs from it.
    """

    median_ns: int
    spread_ns: int


@final
@dataclass(frozen=True, slots=True)
class Measurement:
    """How long a task took.

    Args:
        passes: those that count, at least one, in the order in which they were timed.
        work: points of all views, by which neighbours are compared.
        flops: operations of the task.
        touched: bytes that it reads and writes.
        dropped: how many earlier passes there were that count no more.
        runoff: what the passes have in common with those of the tasks that were timed side by side; empty: none were.
        kept: bytes that the body takes beside what it sees, from when it is bound.
        peak: bytes more while it runs, at most.
        shared: bytes that it has of its processor's scratchpad, with which other bodies take turns.
    """

    passes: tuple[Pass, ...]
    work: int
    flops: float
    touched: int
    dropped: int = 0
    runoff: str = ""
    kept: int = 0
    peak: int = 0
    shared: int = 0

    @classmethod
    def of(cls, launch: Launch, point: int, median_ns: int, spread_ns: int, scratch: Taken = NOTHING) -> Self:
        """One pass of one task of a launch."""
        sizes = [(each.rects[point].volume, each.region.itemsize) for each in launch.requirements]
        flops = launch.flops[point] if launch.flops else 0.0
        touched = sum(volume * itemsize for volume, itemsize in sizes)
        timed = (Pass(median_ns, spread_ns),)
        return cls(timed, sum(volume for volume, _ in sizes), flops, touched, 0, "", *scratch)

    @property
    def median_ns(self) -> int:
        """The middle of the passes."""
        return round(statistics.median(one.median_ns for one in self.passes))

    def taken_ns(self, back: int) -> int:
        """The middle of the passes for 0, or the one so many from the end, where there is one."""
        return self.passes[-back].median_ns if 0 < back <= len(self.passes) else self.median_ns

    @property
    def timed(self) -> int:
        """In how many passes it was timed, those that count no more included."""
        return self.dropped + len(self.passes)


@final
@dataclass(slots=True)
class Measurements:
    """Measurements of one device with one set of software.

    Args:
        device: the device.
        software: the versions.
        tasks: what was measured.
    """

    device: str
    software: str
    tasks: dict[TaskKey, Measurement] = field(default_factory=dict)

    @classmethod
    def here(cls, kind: str = CPU) -> Measurements:
        """None yet, for a device of this computer with its software.

        Args:
            kind: the device, by its name in the registry.
        """
        return cls(name_device(kind), name_software(kind))

    def lasting(self) -> Measurements:
        """Those that other programs may use, too."""
        return Measurements(self.device, self.software, {key: one for key, one in self.tasks.items() if key.lasts})


def step_bytes(graph: Graph) -> int:
    """Give the bytes that a step of a graph touches, about: the nearest power of two, from 64 to 256 MiB.

    A step touches all its weights and activations before it runs the same task again, so a task finds them in a cache
    only as far as that holds a step. Steps of about one size share their measurements. Small ones do not find all
    in the last cache either, for other cores and programs use it, too.
    """
    touched = 0
    for tensor in graph.tensors:
        times = PER_WEIGHT if tensor.lasting else PER_ACTIVATION
        touched += times * prod(tensor.shape) * torch_dtype(tensor.dtype).itemsize
    return min(max(FOOTPRINT_BYTES, 1 << round(log2(max(1, touched)))), MOST_BYTES)


def frames(launch: Launch, points: Iterable[int]) -> tuple[Rect | None, ...]:
    """Give the box of each instance that some tasks of a launch share: what they use of it; None where they use none.

    A part of a box is not contiguous, and kernels of torch are slower on it or copy it first. Other launches may use
    more of the same instance; what they make of the boxes is not known here.

    Args:
        launch: the launch.
        points: its tasks in one memory.
    """
    found: list[Rect | None] = [None] * len(launch.requirements)
    for point in points:
        for place, requirement in enumerate(launch.requirements):
            rect, held = requirement.rects[point], found[place]
            if not rect.is_empty:
                found[place] = rect.bounds if held is None else held.hull(rect.bounds)
    return tuple(found)


def task_key(
    launch: Launch,
    point: int,
    cores: int,
    boxes: Sequence[Rect | None],
    footprint: int = FOOTPRINT_BYTES,
    *,
    beside: bool = False,
) -> TaskKey | None:
    """Give what determines the time of a task; None for tasks that only pass values on.

    Args:
        launch: the launch.
        point: which of its tasks.
        cores: that the processor owns.
        boxes: of the instances that it sees, by requirement.
        footprint: bytes that a step touches.
        beside: whether other processors work meanwhile.
    """
    if not launch.kind:
        return None
    # A binder's node is its operator; what has none (an update) is told by its own fields.
    node = getattr(launch.binder, "node", None)
    body = launch.binder if node is None else node.operator
    added = joining(launch)
    shapes = tuple(
        "-"
        if box is None or rect.is_empty
        else f"{'+' * (number in added)}{_part(rect.bounds, box)}:{requirement.region.dtype}"
        for number, (requirement, box) in enumerate(zip(launch.requirements, boxes, strict=True))
        for rect in (requirement.rects[point],)
    )
    # A user's operator is written down as a class and its arguments; what it runs belongs to the class.
    name, nameless = body_name((body, body.definition.function) if isinstance(body, UserOperator) else body)
    lasts = not (nameless or is_written_by_user(body))
    return TaskKey(launch.kind, name, shapes, cores, footprint, beside, lasts, nameless)


def _part(rect: Rect, box: Rect) -> str:
    shape, whole = ("x".join(map(str, one.shape)) for one in (rect, box))
    return shape if shape == whole else f"{shape}/{whole}"


def work(launch: Launch, point: int) -> int:
    """Give the points of all views of a task."""
    return sum(requirement.rects[point].volume for requirement in launch.requirements)


def measure(
    launch: Launch,
    point: int,
    cores: int,
    boxes: Sequence[Rect | None],
    footprint: int = FOOTPRINT_BYTES,
    clock: Callable[[], int] = time.perf_counter_ns,
    others: int = 0,
) -> Measurement:
    """Time a task's body on tensors that take turns, while other cores work: warm-up, median and spread.

    What others do is the same where the processor has one core (see `peer`); else, and beside more of them, they add.

    Args:
        launch: the launch; it must have a body.
        point: which of its tasks.
        cores: threads that torch may use.
        boxes: of the instances that it sees, by requirement.
        footprint: bytes that a step touches: calls take turns on tensors that have as many in all.
        clock: nanoseconds.
        others: cores that work meanwhile, as far as this computer has so many beside those of the task.

    Raises:
        RequestError: the launch has no body.
    """
    import torch

    body = TimedBody(launch, point, cores, boxes)
    keep_freed()  # as a step does
    copies = max(1, min(MOST_COPIES, footprint // max(1, body.size())))
    threads = torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        with torch.no_grad():
            runs = _time_calls(lambda: _bind_all(body.bind, copies, clock), cores, clock, others)
            views = body.views()
            scratch = measure_scratch(lambda: body.bind(views), watch_host_run)
            scratch = scratch._replace(shared=body.shared_bytes())
    finally:
        torch.set_num_threads(threads)
    median = statistics.median(runs)
    spread = statistics.median(abs(run - median) for run in runs)
    return Measurement.of(launch, point, max(1, round(median)), round(spread), scratch)


def _time_calls(bind: Callable[[], _Turns], cores: int, clock: Callable[[], int], others: int) -> list[float]:
    """Give what a call takes in each of some runs, while other cores work."""
    peers = spare_cores()[: min(others, MOST_PEERS)] if cores == 1 else []
    runs = []
    # Peers are forked before there are threads that work.
    with Peers(peers, lambda: bind().bodies) as beside, load_cores(others - len(peers), len(peers)):
        turns = bind()
        bodies = cycle(turns.bodies)
        beside.wait()
        for _ in range(RUNS):
            begun = clock()
            for each in islice(bodies, turns.calls):
                each()
            runs.append((clock() - begun) / turns.calls)
    return runs


class _Turns(NamedTuple):
    """Bodies that take turns, and the calls of a run."""

    bodies: list[Callable[[], object]]
    calls: int


def _bind_all(bind: Callable[[], Callable[[], object]], copies: int, clock: Callable[[], int]) -> _Turns:
    """Bind a body to as many tensors as there are, but no more than there will be calls, and call each."""
    first = bind()
    for _ in range(WARM_UP):
        first()
    begun = clock()
    first()
    calls = max(1, round(LEAST_S * 1e9 / max(1, clock() - begun)))
    others = [bind() for _ in range(min(copies, RUNS * calls) - 1)]
    for each in others:
        each()
    return _Turns([*others, first], calls)


def read_measurements(path: str | os.PathLike[str]) -> Measurements:
    """Read a file that `write_measurements` wrote.

    Args:
        path: the file.

    Raises:
        RequestError: the file or an entry of it is wrong.
    """
    table = read_json(path).table(("version", "device", "software", "tasks"))
    if table["version"].integer(1) != VERSION:
        raise table["version"].problem(f"version {VERSION}; measure again")
    found = Measurements(table["device"].string(), table["software"].string())
    for entry in table["tasks"].elements():
        task = entry.table(FIELDS)
        shapes = tuple(shape.string() for shape in task["shapes"].elements())
        kind, body = task["kind"].string(), task["body"].string()
        cores, footprint = task["cores"].integer(1), task["footprint"].integer(1)
        key = TaskKey(kind, body, shapes, cores, footprint, task["beside"].boolean())
        passes = tuple(_read_pass(one) for one in task["passes"].elements())
        if not passes:
            raise task["passes"].problem("at least one pass")
        work, touched, dropped, *scratch = (task[name].integer(0) for name in WHOLE)
        flops, runoff = task["flops"].number(0), task["runoff"].string()
        found.tasks[key] = Measurement(passes, work, flops, touched, dropped, runoff, *scratch)
    return found


def _read_pass(entry: Entry) -> Pass:
    table = entry.table(("median_ns", "spread_ns"))
    return Pass(table["median_ns"].integer(1), table["spread_ns"].integer(0))


def write_measurements(path: str | os.PathLike[str], found: Measurements) -> None:
    """Write those measurements that last, whole or not at all, one task per line.

    Raises:
        RequestError: the place cannot be written.
    """
    lines = [
        json.dumps({name: term for name, term in {**asdict(key), **asdict(value)}.items() if name in FIELDS})
        for key, value in sorted(found.lasting().tasks.items(), key=lambda task: task[0])
    ]
    head = f'"version": {VERSION}, "device": {json.dumps(found.device)}, "software": {json.dumps(found.software)}'
    write_atomically(path, "{" + head + ', "tasks": [\n' + ",\n".join(lines) + "\n]}\n")
