"""The baseline: two processes that run a schedule written by hand, through memory that both map, with no runtime."""

from __future__ import annotations

import json
import mmap
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
from numba import njit

from maniple.regions.error import RunError
from taskbench.graph import PAIR_BYTES, TaskGraph
from taskbench.kernel import acquire, complaint, compute, fill, release, wrong
from taskbench.system import NODES, System, Worker

if TYPE_CHECKING:
    from types import TracebackType

LINES = 128  # bytes of two cache lines, which processors fetch together: what tasks of two points write lies apart
PATIENCE = 1 << 14  # looks at a counter before the core is offered to others
SLICE = 1 << 18  # iterations, about a millisecond's
AGAIN, DONE = -2, -1
START_IN_NS = 3_000_000  # what it takes to tell both processes when to start


@njit(nogil=True, cache=True)
def scheduled(row: int, iterations: int) -> int:
    """Run one task of the schedule, as soon as what it waits for is done.

    Args:
        row: address of the task's row: step, point, pairs, address of its output and of its counter; how many counters
            it waits for, and their addresses; how many inputs it has, and each one's point and address.
        iterations: of the kernel.

    Returns:
        DONE, AGAIN when a counter did not come, or the address of a wrong input.
    """
    step = acquire(row)
    point = acquire(row + 8)
    pairs = acquire(row + 16)
    at = row + 48
    for _ in range(acquire(row + 40)):
        counter = acquire(at)
        looks = 0
        while acquire(counter) < step:
            looks += 1
            if looks == PATIENCE:
                return AGAIN
        at += 8
    inputs = acquire(at)
    for number in range(inputs):
        address = acquire(at + 16 + 16 * number)
        if wrong(address, pairs, step - 1, acquire(at + 8 + 16 * number)):
            return address
    fill(acquire(row + 24), pairs, step, point)
    if compute(iterations) == 0.0:  # never so; see `execute`
        return 0
    release(acquire(row + 32), step + 1)
    return DONE


class Schedule:
    """One process's tasks, in the order in which it runs them: a table of rows in memory, and their addresses.

    A task waits for the tasks of other processes that it reads, and for those that still read the buffer that it
    writes; payloads lie in two buffers, by the parity of the step. Within a step a process first runs the points that
    others wait for. Width 4, stencil_1d:

        process 0   1 0   1 0   1 0  ...      point 1 waits for point 2 of the step before
        process 1   2 3   2 3   2 3  ...      point 2 waits for point 1 of the step before

    Args:
        graph: the graph.
        process: which process.
        memory: address of the memory that all map: for both parities a counter and a payload per point.
    """

    def __init__(self, graph: TaskGraph, process: int, memory: int) -> None:
        owner = [point * NODES // graph.width for point in range(graph.width)]
        inputs = {task: graph.inputs(*task) for task in graph.tasks()}
        readers: dict[tuple[int, int], list[int]] = {}
        for (step, point), sources in inputs.items():
            for source in sources:
                readers.setdefault((step - 1, source), []).append(point)
        mine = [task for task in graph.tasks() if owner[task[1]] == process]
        awaited = {task: any(owner[reader] != process for reader in readers.get(task, ())) for task in mine}
        mine.sort(key=lambda task: (task[0], not awaited[task], task[1]))
        rows, starts = [], []
        for step, point in mine:
            waits = {*inputs[step, point], *readers.get((step - 2, point), ())}
            remote = sorted(source for source in waits if owner[source] != process)
            starts.append(len(rows))
            counter = memory + offset(graph, step, point)
            rows += [step, point, graph.pairs, counter + PAIR_BYTES, counter]
            rows += [len(remote), *(memory + offset(graph, step - 1, source) for source in remote)]
            rows += [len(inputs[step, point])]
            for source in inputs[step, point]:
                rows += [source, memory + offset(graph, step - 1, source) + PAIR_BYTES]
        self._table = np.array(rows, np.int64)
        self.tasks = mine
        self.rows = [self._table.ctypes.data + 8 * start for start in starts]

    def run(self, calls: list[tuple[int, int]]) -> None:
        """Run every task.

        Args:
            calls: each row with its iterations.

        Raises:
            RunError: a task found an input that is not what it must read.
        """
        for row, iterations in calls:
            while (outcome := scheduled(row, iterations)) != DONE:
                if outcome != AGAIN:
                    raise self._complaint(row)
                os.sched_yield()

    def _complaint(self, row: int) -> RunError:
        at = (row - self._table.ctypes.data) // 8
        step, point, pairs = self._table[at : at + 3].tolist()
        at += 6 + int(self._table[at + 5])
        inputs = self._table[at + 1 : at + 1 + 2 * int(self._table[at])].reshape(-1, 2).tolist()
        return complaint(step, point, pairs, *(word for source, address in inputs for word in (source, 1, address)))


def offset(graph: TaskGraph, step: int, point: int) -> int:
    """Where a task's counter lies; its payload follows, so that a small one comes in the same cache line."""
    stride = -(-(PAIR_BYTES + graph.payload) // LINES) * LINES
    return (step % 2 * graph.width + point) * stride


class Mapped:
    """A file in memory, mapped.

    Args:
        path: the file.
        length: its bytes.
    """

    def __init__(self, path: str, length: int) -> None:
        with Path(path).open("r+b") as file:
            file.truncate(max(length, file.seek(0, os.SEEK_END)))
            self._map = mmap.mmap(file.fileno(), length)
        self.words = np.frombuffer(self._map, np.int64)
        self.address = self.words.ctypes.data


def wait_until(start_ns: int) -> None:
    """Return at an instant of the host's monotonic clock, with the core awake."""
    time.sleep(max(0.0, (start_ns - time.perf_counter_ns()) / 1e9 - 1e-3))
    while time.perf_counter_ns() < start_ns:
        pass


def work(process: int, path: str) -> None:
    """Answer requests until there are no more, on a core of its own; see `Static` for what they are."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[process % len(cores)]})
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        if "peak_s" in request:
            wait_until(request["start_ns"])
            answer["iterations_per_s"] = peak(request["peak_s"])
        elif "graph" in request:
            graph = TaskGraph(**request["graph"])
            memory = Mapped(path, offset(graph, 1, graph.width))
            schedule = Schedule(graph, process, memory.address)
            owned = [point for point in range(graph.width) if point * NODES // graph.width == process]
        elif "iterations" in request:
            counts = [graph.iterations(*task, request["iterations"]) for task in schedule.tasks]
            calls = list(zip(schedule.rows, counts, strict=True))
            for step, point in product(range(2), owned):
                memory.words[offset(graph, step, point) // 8] = 0
        else:
            wait_until(request["start_ns"])
            try:
                schedule.run(calls)
                answer["end_ns"] = time.perf_counter_ns()
            except RunError as error:
                answer["error"] = str(error)
        print(json.dumps(answer), flush=True)


def peak(seconds: float) -> float:
    """Iterations of the bare kernel per second on this core: the best slice of a given time, whatever else ran."""
    compute(SLICE)
    best = 0.0
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        compute(SLICE)
        best = max(best, SLICE / (time.perf_counter() - begun))
    return best


@final
class Static(System):
    """Two processes with one file mapped.

    A request has a `graph` to lay out, `iterations` to get ready for, `start_ns` to run, or `peak_s` and `start_ns` to
    run the bare kernel. Both processes start at one instant; the time is until the later one ends.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._workers: list[Worker] = []

    def __enter__(self) -> Self:
        """Start the processes."""
        folder = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108  (its point is to be memory)
        file = self._stack.enter_context(tempfile.NamedTemporaryFile(dir=folder, prefix="taskbench-"))
        for process in range(NODES):
            command = [sys.executable, "-m", "taskbench.static", str(process), file.name]
            self._workers.append(self._stack.enter_context(Worker(command, os.environ)))
        return self

    def prepare(self, graph: TaskGraph) -> None:
        """Have both processes lay out their schedules."""
        self._ask({"graph": asdict(graph)})
        self.run(0)

    def run(self, iterations: int) -> float:
        """Run it once: counters are set back before either process starts."""
        self._ask({"iterations": iterations})
        start = time.perf_counter_ns() + START_IN_NS
        answers = self._ask({"start_ns": start})
        return max(int(answer["end_ns"]) - start for answer in answers) / 1e9

    def peak(self, seconds: float) -> float:
        """Floating-point operations per second of the bare kernel on all cores at once."""
        start = time.perf_counter_ns() + START_IN_NS
        answers = self._ask({"peak_s": seconds, "start_ns": start})
        return sum(2 * 64 * float(answer["iterations_per_s"]) for answer in answers)

    def _ask(self, request: dict[str, object]) -> list[dict[str, Any]]:
        for worker in self._workers:
            worker.send(request)
        return [worker.receive() for worker in self._workers]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes."""
        self._stack.__exit__(kind, error, trace)


if __name__ == "__main__":
    work(int(sys.argv[1]), sys.argv[2])
