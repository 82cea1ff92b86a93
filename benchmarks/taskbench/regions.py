"""Maniple: each step one index launch; what flows between steps are regions, double buffered by the step's parity."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import torch
from numba import njit

import maniple as mp
from taskbench.graph import Span, TaskGraph
from taskbench.kernel import compute, fill, wrong
from taskbench.static import wait_until
from taskbench.system import NODES, System, Worker

if TYPE_CHECKING:
    from types import TracebackType

    import numpy as np

    from maniple.regions.partition import Partitioning

    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Words = np.ndarray[Any, np.dtype[np.int64]]

START_IN_NS = 5_000_000  # what it takes to tell all ranks when to start
WARM_UP = 3  # the first run of a trace is analysed, the second binds what is replayed


class Owner(mp.Mapper):
    """Places a point on the same processor at every step, as Task Bench does: in blocks over the widest step.

    Args:
        width: points of the widest step.
    """

    def __init__(self, width: int) -> None:
        self.width = width

    def task_options(self, launch: mp.plugins.LaunchView) -> mp.plugins.TaskOptions:
        """Keep the answers: they depend on the launch alone."""
        del launch
        return mp.plugins.TaskOptions(keep=True)

    def shard(self, launch: mp.plugins.LaunchView) -> list[int]:
        """Choose ranks by point."""
        machine = launch.machine
        return [machine.rank_of(self._owner(machine, color[0])) for color in launch.colors]

    def select_processor(self, task: mp.plugins.TaskView) -> int:
        """Choose the processor by point."""
        return self._owner(task.launch.machine, task.color[0])

    def map_task(self, task: mp.plugins.TaskView) -> mp.plugins.TaskMapping:
        """Choose the compiled body."""
        return mp.plugins.TaskMapping("numba")

    def _owner(self, machine: mp.Machine, point: int) -> int:
        return machine.processors[point * len(machine.processors) // self.width].id


@njit(nogil=True, cache=True)
def run_point(
    step: int, base: int, point: int, known: Floats, output: Words, inputs: tuple[Words, ...]
) -> None:  # fmt: skip
    """Run one task.

    Args:
        step: its step.
        base: iterations of the kernel, times its factor.
        point: its point.
        known: by step and point its factor; then for each run of inputs its first point and how many there are.
        output: what it writes, a row.
        inputs: for each run of inputs the rows.

    Raises:
        ValueError: an input does not hold what its task wrote.
    """
    pairs = output.shape[1] // 2
    for number in range(len(inputs)):
        first, count = int(known[step, point, 1 + 2 * number]), int(known[step, point, 2 + 2 * number])
        for source in range(count):
            if wrong(inputs[number].ctypes.data + source * pairs * 16, pairs, step - 1, first + source):
                raise ValueError("an input does not hold what its task wrote: it ran too early, or mixed up its inputs")
    fill(output.ctypes.data, pairs, step, point)
    compute(round(known[step, point, 0] * base))


@cache
def point_task(inputs: int) -> mp.Task[..., None]:
    """The task that runs one point, with as many parameters as its inputs have runs of points.

    Args:
        inputs: how many; a point that has fewer is given empty ones. At least 1.
    """
    names = [f"input{number}" for number in range(inputs)]
    parameters = ", ".join(["step", "base", "color", "known", "output", *names])
    source = f"def point({parameters}):\n    run_point(step, base, color[0], known, output, ({', '.join(names)},))\n"
    scope = {"run_point": run_point}
    exec(source, scope)  # noqa: S102  (a task names its parameters, and numba takes them as they are written)
    body: Any = scope["point"]
    declared = {"step": int, "base": int, "color": mp.Color, "known": mp.Read, "output": mp.WriteDiscard}
    body.__annotations__ = declared | dict.fromkeys(names, mp.Read)
    made: mp.Task[..., None] = mp.task(name=f"point of {inputs} inputs")(body)
    made.variant("numba")(body)
    return made


@cache
def _points(first: int, end: int) -> mp.Rect:
    """The launch domain of a step."""
    return mp.Rect((first,), (end,))


class Program:
    """A graph as regions and launches.

    Args:
        graph: the graph.
    """

    def __init__(self, graph: TaskGraph) -> None:
        self._mapper = Owner(graph.width)
        self._base = -1
        self._name = f"{graph.pattern} of {graph.payload} bytes"
        self._words = graph.payload // 8
        buffers = [mp.region((graph.width, self._words), dtype="int64", name=f"buffer {parity}") for parity in range(2)]
        own = self._tiles(tuple((point, point + 1) for point in range(graph.width)))
        runs = max(1, *(len(graph.spans(*task)) for task in graph.tasks()))
        known = torch.zeros(graph.steps, graph.width, 1 + 2 * runs, dtype=torch.float64)
        for task in graph.tasks():
            words = [word for low, high in graph.spans(*task) for word in (low, high - low)]
            known[task][: 1 + len(words)] = torch.tensor([graph.factors[task], *words])
        self.known = mp.region(tuple(known.shape), dtype="float64", name="known")
        self.known.write(known)
        self._launches = []
        for step in range(graph.steps):
            first, end = graph.points(step)
            spans = [graph.spans(step, point) if first <= point < end else () for point in range(graph.width)]
            count = max(1, *map(len, spans))
            padded = [(*found, *[(0, 0)] * (count - len(found))) for found in spans]
            tiles = [self._tiles(tuple(found[number] for found in padded)) for number in range(count)]
            views = (self.known, buffers[step % 2][own], *(buffers[(step - 1) % 2][read] for read in tiles))
            self._launches.append((point_task(count), _points(first, end), step, views))

    @cache  # noqa: B019  (a program ends with its process)
    def _tiles(self, runs: tuple[Span, ...]) -> Partitioning:
        """The partition that gives each point of a launch a run of the points' payloads."""
        return mp.rectangles([((low, 0), (high, self._words)) for low, high in runs])

    def prepare(self, base: int, mode: str) -> None:
        """Do what a run may find done: a replay takes the values of the run before."""
        if mode == "replayed" and base != self._base:
            self.run(base, "traced")
        self._base = base

    def run(self, base: int, mode: str) -> None:
        """Run it once, and wait for it.

        Args:
            base: iterations of the kernel.
            mode: `untraced`; `traced`, recorded once, and from then on every launch compared and the whole replayed;
                or `replayed` without making the launches.
        """
        if mode == "replayed":
            mp.trace(self._name).replay()
            mp.fence()
            return
        with mp.trace(self._name) if mode == "traced" else nullcontext():
            for task, domain, step, views in self._launches:
                mp.index_launch(task, domain, step, base, *views, mapper=self._mapper)
        mp.fence()


def serve() -> None:
    """Answer the requests that come to rank 0: a graph to prepare, or iterations to run."""
    world = mp.world()
    program: Program | None = None
    while True:
        line = sys.stdin.readline() if world.rank == 0 else ""
        line = world.control.gather(line.encode())[0].decode()
        if not line:
            return
        asked = json.loads(line)
        answer = {}
        if "graph" in asked:
            program = Program(TaskGraph(**asked["graph"]))
        elif program is not None:
            program.prepare(asked["iterations"], asked["mode"])
            start = int(world.control.gather(str(time.perf_counter_ns() + START_IN_NS).encode())[0])
            wait_until(start)
            program.run(asked["iterations"], asked["mode"])
            ends = world.control.gather(str(time.perf_counter_ns()).encode())
            answer["seconds"] = (max(map(int, ends)) - start) / 1e9
        if world.rank == 0:
            print(json.dumps(answer), flush=True)


class Regions(System):
    """A world of one-core nodes, started by the launcher; requests go to rank 0.

    The time is from one instant at which all ranks start to the last one's end.
    """

    mode: ClassVar[str]

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Start the ranks."""
        command = [sys.executable, "-m", "maniple.cli", "run", "--nodes", str(NODES), "--cores", "1"]
        self._ranks = self._stack.enter_context(Worker([*command, "-m", "taskbench.regions"], os.environ))
        return self

    def prepare(self, graph: TaskGraph) -> None:
        """Make its regions and partitions, and run it until what can be remembered is."""
        self._ask({"graph": asdict(graph)})
        for _ in range(WARM_UP):
            self.run(0)

    def run(self, iterations: int) -> float:
        """Run it once."""
        return float(self._ask({"iterations": iterations, "mode": self.mode})["seconds"])

    def _ask(self, request: dict[str, object]) -> dict[str, Any]:
        self._ranks.send(request)
        return self._ranks.receive()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the ranks."""
        self._stack.__exit__(kind, error, trace)


@final
class Traced(Regions):
    """Maniple, with the graph in a trace: every launch is made, and compared with the recording."""

    mode = "traced"


@final
class Replayed(Regions):
    """Maniple, with the graph replayed as it was recorded, as a compiled graph is; no launch is made."""

    mode = "replayed"


@final
class Untraced(Regions):
    """Maniple, with every launch analysed as it comes."""

    mode = "untraced"


if __name__ == "__main__":
    serve()
