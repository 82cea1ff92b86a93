"""Maniple: each step one index launch; what flows between steps are regions, double buffered by the step's parity."""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import maniple as mp
from taskbench.graph import Span, TaskGraph
from taskbench.kernel import complaint, execute, run_task
from taskbench.static import wait_until
from taskbench.system import NODES, System, Worker

if TYPE_CHECKING:
    from types import TracebackType

    import torch

    from maniple.regions.partition import Partitioning

START_IN_NS = 5_000_000  # what it takes to tell all ranks when to start
WARM_UP = 3  # the first run of a trace is analysed, the second binds what is replayed


class Owner(mp.Mapper):
    """Places a point on the same processor at every step, as Task Bench does: in blocks over the widest step.

    Args:
        width: points of the widest step.
    """

    def __init__(self, width: int) -> None:
        self.width = width

    def task_options(self, launch: mp.LaunchView) -> mp.TaskOptions:
        """Keep the answers: they depend on the launch alone."""
        del launch
        return mp.TaskOptions(keep=True)

    def shard(self, launch: mp.LaunchView) -> list[int]:
        """Choose ranks by point."""
        machine = launch.machine
        return [machine.rank_of(self._owner(machine, color[0])) for color in launch.colors]

    def select_processor(self, task: mp.TaskView) -> int:
        """Choose the processor by point."""
        return self._owner(task.launch.machine, task.color[0])

    def _owner(self, machine: mp.Machine, point: int) -> int:
        return machine.processors[point * len(machine.processors) // self.width].id


class Known:
    """What every body knows of the graph that runs now, as it would know a constant."""

    graph: TaskGraph
    pairs: int
    reads: list[list[tuple[tuple[int, int], ...]]]  # by step and point: first point and length of each run of inputs


@cache
def point_task(inputs: int) -> mp.Task[..., None]:
    """The task that runs one point, with as many parameters as its inputs have runs of points.

    Args:
        inputs: how many; a point that has fewer is given empty ones.
    """

    def general(step: int, base: int, color: tuple[int], output: torch.Tensor, *found: torch.Tensor) -> None:
        (point,) = color
        iterations = Known.graph.iterations(step, point, base) if Known.graph.imbalance else base
        words = [output.data_ptr()]
        for (first, length), view in zip(Known.reads[step][point], found, strict=True):
            words += (first, length, view.data_ptr())
        run_task(step, point, iterations, Known.pairs, *words)

    def single(step: int, base: int, color: tuple[int], output: torch.Tensor, found: torch.Tensor) -> None:
        point = color[0]
        iterations = Known.graph.iterations(step, point, base) if Known.graph.imbalance else base
        ((first, length),) = Known.reads[step][point]
        address = found.data_ptr()
        if execute(step, point, iterations, Known.pairs, output.data_ptr(), first, length, address) >= 0:
            raise complaint(step, point, Known.pairs, first, length, address)

    body = single if inputs == 1 else general
    declared = {"step": int, "base": int, "color": mp.Color, "output": mp.WriteDiscard}
    declared |= {f"input{number}": mp.Read for number in range(inputs)}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    body.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in declared])  # type: ignore[attr-defined]
    body.__annotations__ = dict(declared)
    return mp.task(name=f"point of {inputs} inputs")(body)


class Program:
    """A graph as regions and launches.

    Args:
        graph: the graph.
    """

    def __init__(self, graph: TaskGraph) -> None:
        Known.graph, Known.pairs, Known.reads = graph, graph.pairs, []
        self._mapper = Owner(graph.width)
        self._name = f"{graph.pattern} of {graph.payload} bytes"
        self._words = graph.payload // 8
        buffers = [mp.region((graph.width, self._words), dtype="int64", name=f"buffer {parity}") for parity in range(2)]
        own = self._tiles(tuple((point, point + 1) for point in range(graph.width)))
        self._launches = []
        for step in range(graph.steps):
            first, end = graph.points(step)
            spans = [graph.spans(step, point) if first <= point < end else () for point in range(graph.width)]
            count = max(map(len, spans))
            runs = [(*found, *[(0, 0)] * (count - len(found))) for found in spans]
            tiles = [self._tiles(tuple(found[number] for found in runs)) for number in range(count)]
            views = (buffers[step % 2][own], *(buffers[(step - 1) % 2][read] for read in tiles))
            self._launches.append((point_task(count), mp.Rect((first,), (end,)), step, views))
            Known.reads.append([tuple((low, high - low) for low, high in found) for found in runs])

    @cache  # noqa: B019  (a program ends with its process)
    def _tiles(self, runs: tuple[Span, ...]) -> Partitioning:
        """The partition that gives each point of a launch a run of the points' payloads."""
        return mp.rectangles([((low, 0), (high, self._words)) for low, high in runs])

    def run(self, base: int, *, traced: bool) -> None:
        """Launch it once, and wait for it.

        Args:
            base: iterations of the kernel.
            traced: whether to record it once and replay it from then on.
        """
        with mp.trace(self._name) if traced else nullcontext():
            for task, domain, step, views in self._launches:
                mp.index_launch(task, domain, step, base, *views, mapper=self._mapper)
        mp.fence()


def serve() -> None:
    """Answer the requests that come to rank 0: a graph to prepare, or iterations to run."""
    world = mp.world()
    program: Program | None = None
    while True:
        line = sys.stdin.readline() if world.rank == 0 else ""
        start = time.perf_counter_ns() + START_IN_NS
        request = json.loads(world.control.gather(json.dumps({"line": line, "start_ns": start}).encode())[0])
        if not request["line"]:
            return
        asked = json.loads(request["line"])
        answer = {}
        if "graph" in asked:
            program = Program(TaskGraph(**asked["graph"]))
        elif program is not None:
            wait_until(request["start_ns"])
            program.run(asked["iterations"], traced=asked["traced"])
            ends = world.control.gather(str(time.perf_counter_ns()).encode())
            answer["seconds"] = (max(map(int, ends)) - request["start_ns"]) / 1e9
        if world.rank == 0:
            print(json.dumps(answer), flush=True)


class Regions(System):
    """A world of one-core nodes, started by the launcher; requests go to rank 0.

    The time is from one instant at which all ranks start to the last one's end.
    """

    traced: ClassVar[bool]

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
        return float(self._ask({"iterations": iterations, "traced": self.traced})["seconds"])

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
    """Maniple, with the graph in a trace."""

    traced = True


@final
class Untraced(Regions):
    """Maniple, with every launch analysed as it comes."""

    traced = False


if __name__ == "__main__":
    serve()
