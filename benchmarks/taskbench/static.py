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

from maniple.process.error import RunError
from taskbench.graph import PAIR_BYTES, TaskGraph
from taskbench.kernel import acquire, complaint, compute, copy, fill, release, wrong
from taskbench.system import NODES, System, Worker

if TYPE_CHECKING:
    from types import TracebackType

LINE = 64
LINES = 128  # bytes of two cache lines, which processors fetch together: what tasks of two points write lies apart
PATIENCE = 1 << 14  # looks at a counter before the core is offered to others
SLICE = 1 << 18  # iterations, about a millisecond's
AGAIN, DONE = -2, -1
START_IN_NS = 3_000_000  # what it takes to tell both processes when to start


@njit(nogil=True, cache=True)
def scheduled(row: int, iterations: int) -> int:
    """Run one task of the schedule, as soon as what it waits for is done, and push its output to those who read it.

    Args:
        row: address of the task's row: step, point, pairs, addresses of its output and its counter; how many counters
            it waits for, and their addresses; how many inputs it has, and each one's point and address; to how many
            other processes its output goes, and for each where to, and the counter there.
        iterations: of the kernel.

    Returns:
        DONE, AGAIN when a counter did not come, or the address of a wrong input.
    """
    step = acquire(row)
    point = acquire(row + 8)
    pairs = acquire(row + 16)
    output = acquire(row + 24)
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
    fill(output, pairs, step, point)
    if compute(iterations) == 0.0:  # never so; see `execute`
        return 0
    at += 8 + 16 * inputs
    for number in range(acquire(at)):
        copy(acquire(at + 8 + 16 * number), output, pairs * PAIR_BYTES)
        release(acquire(at + 16 + 16 * number), step + 1)
    release(acquire(row + 32), step + 1)
    return DONE


class Schedule:
    """One process's tasks, in the order in which it runs them: a table of rows in memory, and their addresses.

    A process has a place for every payload that its tasks write or read. A task writes into its own process's, and
    copies that once to each other process that reads it: what a core writes again and again stays in its caches, and a
    payload that two points read crosses once. A task waits for what others push to it, and for those that still read
    what it pushed before to the same place; payloads have two places, by the parity of the step. Within a step a
    process first runs the points that others wait for. Width 4, stencil_1d:

        process 0   1> 0   1> 0   1> 0  ...      point 1 waits for point 2 of the step before; > is a push
        process 1   2> 3   2> 3   2> 3  ...      point 2 waits for point 1 of the step before

    Args:
        graph: the graph.
        process: which process.
        memory: address of the memory that all map.
    """

    def __init__(self, graph: TaskGraph, process: int, memory: int) -> None:
        owner = [point * NODES // graph.width for point in range(graph.width)]
        inputs = {task: graph.inputs(*task) for task in graph.tasks()}
        readers: dict[tuple[int, int], list[int]] = {}
        for (step, point), sources in inputs.items():
            for source in sources:
                readers.setdefault((step - 1, source), []).append(point)
        mine = [task for task in graph.tasks() if owner[task[1]] == process]
        others = {task: sorted({owner[point] for point in readers.get(task, ())} - {process}) for task in mine}
        mine.sort(key=lambda task: (task[0], not others[task], task[1]))
        rows, starts, lead = [], [], before(graph)
        for step, point in mine:
            pushed = [memory + offset(graph, step - 1, one, process) for one in inputs[step, point]]
            remote = [at for at, one in zip(pushed, inputs[step, point], strict=True) if owner[one] != process]
            # Whoever read what lies where this goes to; what it wrote itself tells that it has.
            late = [one for one in readers.get((step - 2, point), ()) if owner[one] != process]
            remote += [memory + offset(graph, step - 1, one, owner[one]) for one in late]
            starts.append(len(rows))
            own, *targets = (memory + offset(graph, step, point, one) for one in (process, *others[step, point]))
            rows += [step, point, graph.pairs, own + lead, own, len(remote), *remote, len(pushed)]
            rows += [word for one, at in zip(inputs[step, point], pushed, strict=True) for word in (one, at + lead)]
            rows += [len(targets), *(word for at in targets for word in (at + lead, at))]
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


def before(graph: TaskGraph) -> int:
    """Bytes from a counter to its payload: a small one comes in the same cache line, any other begins its own."""
    return PAIR_BYTES if PAIR_BYTES + graph.payload <= LINE else LINE


def offset(graph: TaskGraph, step: int, point: int, process: int) -> int:
    """Where a process has a task's counter, which its payload follows."""
    stride = -(-(before(graph) + graph.payload) // LINES) * LINES
    return ((process * 2 + step % 2) * graph.width + point) * stride


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
            memory = Mapped(path, offset(graph, 0, 0, NODES))
            schedule = Schedule(graph, process, memory.address)
        elif "iterations" in request:
            counts = [graph.iterations(*task, request["iterations"]) for task in schedule.tasks]
            calls = list(zip(schedule.rows, counts, strict=True))
            for step, point in product(range(2), range(graph.width)):
                memory.words[offset(graph, step, point, process) // 8] = 0
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
