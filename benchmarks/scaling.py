"""Scaling of traces: what a replayed task costs and keeps as traces grow, and what a step costs as ranks are added.

    python benchmarks/scaling.py                 prints tables and one JSON object
    python benchmarks/scaling.py --json          prints the JSON object alone

Replay: one rank with one processor; a trace of empty tasks, ten points to a launch, each point writing what it wrote
a launch before. The cost of a task is the time from the first launch of a run to the end of a fence, over the tasks;
sizes take turns, and figures are medians over the rounds. Memory is what tracemalloc sees of recording, lowering and
two runs.

Ranks: all of one process, taken on by its one thread (`Stepper`), over the loopback transport, which moves bytes and
nothing else; two points per rank, each reading its neighbours (stencil_1d_periodic, 16 bytes). Every rank sends two
tiles and receives two, be there 2 ranks or 64: tiles for even and for odd ranks are arguments of their own, or two
ranks would swap theirs in one collective. The time of a step is divided by the ranks: a cost that did not depend on
their number would give the same figure for all.
"""

from __future__ import annotations

import json
import statistics
import time
import tracemalloc
from collections.abc import Callable

import click
import torch

import maniple as mp
from maniple.mappers.default import DefaultMapper
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.machine.machine import Machine
from maniple.runtime.program.handle import PartitionedRegion
from maniple.runtime.session.session import Session
from maniple.testing import local_worlds

POINTS = 10
WARM_UP = 3
ROWS_PER_RANK = 2
WORDS = 2


@mp.task
def nothing(x: mp.ReadWrite) -> None:
    """An empty task on its own row."""


@mp.task
def relax(output: mp.WriteDiscard, own: mp.Read, a: mp.Read, b: mp.Read, c: mp.Read, d: mp.Read) -> None:
    """A stencil's task, as small as it gets."""
    output.copy_(own)


def beside(offset: int, parity: int, rows: int) -> Callable[[tuple[int, ...]], tuple[int, int] | None]:
    """Which tile the points of even or of odd ranks read beside their own."""
    return lambda point: ((point[0] + offset) % rows, 0) if point[0] // ROWS_PER_RANK % 2 == parity else None


def session_of(world: World) -> Session:
    """A program on one rank of a world."""
    return Session(RankRuntime.of(world), Machine.cpu(1, ranks=world.size), DefaultMapper())


def chain(session: Session, tasks: int) -> Callable[[], None]:
    """A trace of so many empty tasks; a call runs it and waits.

    Args:
        session: where.
        tasks: how many, a multiple of the points of a launch.
    """
    region = session.region((POINTS, WORDS))
    session.fill(region, 0.0)
    tiles = region[mp.blocks((POINTS, 1))]
    domain = mp.blocks((POINTS, 1)).colors

    def run() -> None:
        with session.trace(f"{tasks} tasks"):
            for _ in range(tasks // POINTS):
                session.index_launch(nothing, domain, tiles)
        session.fence()

    return run


def replay_costs(sizes: tuple[int, ...], rounds: int) -> list[dict[str, float]]:
    """Microseconds per replayed task, by the length of the trace."""
    session = session_of(World.solo(cores=1))
    runs = {tasks: chain(session, tasks) for tasks in sizes}
    for run in runs.values():
        for _ in range(WARM_UP):
            run()
    found: dict[int, list[float]] = {tasks: [] for tasks in sizes}
    for _ in range(rounds):
        for tasks, run in runs.items():
            repeats = max(sizes) // tasks  # every size replays as many tasks
            begun = time.perf_counter()
            for _ in range(repeats):
                run()
            found[tasks].append((time.perf_counter() - begun) / repeats / tasks * 1e6)
    return [{"tasks": tasks, "us_per_task": round(statistics.median(values), 3)} for tasks, values in found.items()]


def memory_per_task(tasks: int) -> dict[str, float]:
    """Bytes that a trace keeps per task."""
    run = chain(session_of(World.solo(cores=1)), tasks)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(WARM_UP):
        run()
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return {"tasks": tasks, "bytes_per_task": round(kept / tasks, 1)}


class Ranks:
    """A traced stencil over ranks that one thread takes on.

    Args:
        size: how many.
        steps: of each run.
    """

    def __init__(self, size: int, steps: int) -> None:
        self.size, self.steps = size, steps
        self._rows = ROWS_PER_RANK * size
        self._sessions = [session_of(world) for world in local_worlds(size, stepped=True)]
        self._launches = [self._made(session) for session in self._sessions]

    def _made(self, session: Session) -> list[tuple[PartitionedRegion, ...]]:
        """The arguments of the launches of one rank."""
        buffers = [session.region((self._rows, WORDS), "float64") for _ in range(2)]
        for buffer in buffers:
            session.fill(buffer, 0.0)
        rows = mp.blocks((self._rows, 1))
        tiles = [buffer[rows] for buffer in buffers]
        sides = [beside(offset, parity, self._rows) for offset in (-1, 1) for parity in range(2)]
        around = [(own, *map(own.project, sides)) for own in tiles]
        return [(tiles[step % 2], *around[1 - step % 2]) for step in range(self.steps)]

    def run(self) -> float:
        """Run once: microseconds per rank and step."""
        begun = time.perf_counter()
        for session, launches in zip(self._sessions, self._launches, strict=True):
            with session.trace("stencil"):
                for tiles in launches:
                    session.index_launch(relax, (self._rows, 1), *tiles)
        for session in self._sessions:
            session.fence()
        return (time.perf_counter() - begun) / self.size / self.steps * 1e6


def rank_costs(sizes: tuple[int, ...], steps: int, rounds: int) -> list[dict[str, float]]:
    """Microseconds per rank and step, by the number of ranks."""
    torch.set_num_threads(1)
    worlds = [Ranks(size, steps) for size in sizes]
    for ranks in worlds:
        for _ in range(WARM_UP):
            ranks.run()
    found: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for ranks in worlds:
            found[ranks.size].append(ranks.run())
    return [{"ranks": size, "us_per_rank_and_step": round(statistics.median(v), 2)} for size, v in found.items()]


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--tasks", multiple=True, type=int, default=(100, 1_000, 10_000, 100_000), help="Tasks of a trace.")
@click.option(
    "--memory-tasks",
    multiple=True,
    type=int,
    default=(10_000, 100_000),
    help="Tasks of a trace whose memory is measured.",
)
@click.option("--ranks", multiple=True, type=int, default=(2, 64), help="Ranks of a world.")
@click.option("--steps", default=10, help="Steps of the ranks' trace.")
@click.option("--rounds", default=5, help="How often each figure is taken; medians count.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON object alone.")
def main(
    *,
    tasks: tuple[int, ...],
    memory_tasks: tuple[int, ...],
    ranks: tuple[int, ...],
    steps: int,
    rounds: int,
    as_json: bool,
) -> None:
    """Measure and print."""
    results = {
        "memory": [memory_per_task(count) for count in memory_tasks],
        "replay": replay_costs(tasks, rounds),
        "ranks": rank_costs(ranks, steps, rounds),
    }
    if not as_json:
        for entry in results["replay"]:
            print(f"{entry['tasks']:7} tasks in a trace  {entry['us_per_task']:8.2f} us per task")
        for kept in results["memory"]:
            print(f"{kept['tasks']:7} tasks in a trace  {kept['bytes_per_task']:8.0f} bytes per task")
        for entry in results["ranks"]:
            print(f"{entry['ranks']:7} ranks             {entry['us_per_rank_and_step']:8.2f} us per rank and step")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
