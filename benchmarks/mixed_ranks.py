"""Many ranks of two kinds: some are processes, the others threads of a few processes, under one real coordinator.

python benchmarks/mixed_ranks.py --ranks 2 64 --per-host 4 --workers 4 --processes 8 --steps 20

Two cores cannot import torch 64 times in 20 seconds, so of 64 ranks 8 are processes that have imported all that a rank
does, and 56 are threads; so are their 16 agents:

    this process      coordinator, supervisor
    worker 0 of 4     agents 0 to 3, and the threads of their ranks
    rank 0, 8, ...    a process each, started by its agent

Control planes, sockets, proofs and tiles are those of every run. In a step a rank makes a call that all must agree on,
as a step of training does, waits for all at a fence that says whether anything failed, and sends a tile to the next
rank. Apart from steps all exchange records, of which each rank reads every other's; no step of training does that.
Told are the seconds from the last import to the last rank's join, the processor time of a step and of an exchange for
each rank, the coordinator's part of both, and what its memory grew by: first with the ranks that are processes, as in
every run, then with all. Ranks that are threads take turns at one interpreter lock, so they are woken more often the
more of them a worker holds. With `--count` calls of Python functions and from Python are told in place of milliseconds.

What a processor has slept for, it does with cold caches: steps of few ranks follow each other sooner than those of many
on the same cores, and cost less for that alone. `--pace` has ranks sleep before each step, so many seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from maniple.process.environment import LaunchEnvironment
from maniple.process.headway import Headway
from maniple.runtime.cluster.agent import Agent
from maniple.runtime.cluster.agent_service import AgentService
from maniple.runtime.cluster.coordinator import Coordinator
from maniple.runtime.cluster.coordinator_event import Event, Instruction, Received
from maniple.runtime.cluster.launcher import RankProcess
from maniple.runtime.cluster.meeting import Meeting
from maniple.runtime.cluster.roster import Roster, Seat
from maniple.runtime.cluster.supervisor import Supervisor
from maniple.runtime.control.coordinator_client import CoordinatorClient
from maniple.runtime.transports import record
from maniple.runtime.transports.agent_message import AgentHello
from maniple.runtime.transports.message import Call, Gather
from maniple.runtime.transports.zeromq import ZmqTransport
from maniple.testing.faulty_run import ThreadProcess

TOKEN = "0123456789abcdef0123456789abcdef"  # noqa: S105 - of these processes alone
JOIN_S, TILE_BYTES = 120.0, 64 << 10


@dataclass(frozen=True)
class Job:
    """What all processes of a run are told.

    Args:
        ranks: how many.
        per_host: of each agent.
        processes: how many ranks are processes of their own.
        steps: how many they take.
        counts: whether calls are counted, and no time.
        pace_s: how long each rank sleeps before each step.
        port: of the coordinator.
    """

    ranks: int
    per_host: int
    processes: int
    steps: int
    counts: bool
    pace_s: float = 0.0
    port: int = 0

    def is_process(self, rank: int) -> bool:
        """Say whether a rank is a process of its own."""
        return rank % max(1, self.ranks // self.processes) == 0 if self.processes else False


class Child(RankProcess):
    """A rank that is a process, as its agent knows it."""

    def __init__(self, job: Job, rank: int) -> None:
        self.process = subprocess.Popen([sys.executable, __file__, "--be", "rank", json.dumps([vars(job), rank])])

    def poll(self) -> int | None:
        """Give its exit status."""
        return self.process.poll()

    def terminate(self) -> None:
        """Ask it to end."""
        self.process.terminate()

    def kill(self) -> None:
        """End it."""
        self.process.kill()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True


class Calls:
    """How many functions were called by the threads that begin from now on, and by this one."""

    def __init__(self) -> None:
        self._numbers = count()
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, _frame: FrameType, event: str, _of: object) -> None:
        if event in {"call", "c_call"}:
            next(self._numbers)

    def __call__(self) -> float:
        """Give the number until now, as milliseconds are given."""
        return next(self._numbers) / 1e3


@dataclass
class Watch:
    """What a process notes of its ranks: when they joined, and what they took before steps, exchanges and the end.

    Args:
        ranks: how many.
        reads: gives what they took until now.
        alone: whether this is a process of one rank.
    """

    ranks: int
    reads: Callable[[], float]
    alone: bool
    joined: list[float] = field(default_factory=list)
    taken: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.line = threading.Barrier(self.ranks, lambda: self.taken.append(self.reads()))

    def tell(self) -> None:
        """Print it."""
        first, turn, last = self.taken
        took = {"alone": self.alone, "steps": turn - first, "exchanges": last - turn}
        tell({"joined": max(self.joined), "ranks": self.ranks, **took})


def tell(what: dict[str, Any]) -> None:
    """Print a line of JSON, whole."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def be_rank(job: Job, rank: int, watch: Watch) -> int:
    """Join, take the steps of a program, and leave; gives the exit status."""
    node, size = rank // job.per_host, job.ranks
    transport = ZmqTransport(rank, size, TOKEN)
    place = rank, size, rank % job.per_host, node, size // job.per_host, job.per_host
    launch = LaunchEnvironment(*place, 1, 1, f"tcp://127.0.0.1:{job.port}", TOKEN, None, JOIN_S)
    client = CoordinatorClient(launch, transport.endpoint, Headway(), end=lambda _: None)
    try:
        transport.connect(client.join().endpoints)
        watch.joined.append(time.monotonic())
        tile = memoryview(bytes(TILE_BYTES))
        for step in range(job.steps + 1):  # the first opens connections, and is not counted
            if step == 1:
                watch.line.wait()
            if job.pace_s:
                time.sleep(job.pace_s)
            take_step(client, transport, step, tile)
        watch.line.wait()
        for number in range(job.steps):
            parts = record.parts(client.gather(record.pack([rank, number])), "exchange")
            if [part.integers() for part in parts] != [(other, number) for other in range(size)]:
                raise ValueError(f"rank {rank}, exchange {number}: the parts of the ranks are not what they sent")
        watch.line.wait()
        client.greatest(b"done")
    finally:
        client.close()
        transport.close()
    return 0


def take_step(client: CoordinatorClient, transport: ZmqTransport, step: int, tile: memoryview) -> None:
    """Take a step: a call, a fence, and a tile to the next rank and from the one before."""
    rank, size = transport.rank, transport.size
    client.call(f"step {step}", b"%d" % step)
    says = b"%08d" % (step * size + rank)
    if client.greatest(says) != b"%08d" % (step * size + size - 1):
        raise ValueError(f"rank {rank}, step {step}: what the fence says is not the greatest of what ranks said")
    transport.send((rank + 1) % size, b"%d" % step, tile, step)
    came = [each for each in transport.poll(None) if each.payload is not None]
    while not came:
        came = [each for each in transport.poll(None) if each.payload is not None]
    if [(each.peer, each.header) for each in came] != [((rank - 1) % size, b"%d" % step)]:
        raise ValueError(f"rank {rank}, step {step}: expected the tile of the rank before, got {came}")


def be_process(job: Job, rank: int) -> int:
    """Be a rank that is a process, with all that a rank of a program has imported."""
    import torch  # noqa: F401

    import maniple  # noqa: F401 - what it takes, torch above all

    tell({"imported": time.monotonic()})
    watch = Watch(1, Calls() if job.counts else time.process_time, alone=True)
    status = be_rank(job, rank, watch)
    watch.tell()
    return status


def be_worker(job: Job, nodes: list[int]) -> int:
    """Be some agents, and those of their ranks that are threads."""
    ranks = [rank for node in nodes for rank in range(node * job.per_host, (node + 1) * job.per_host)]
    reads = Calls() if job.counts else time.process_time
    watch = Watch(sum(not job.is_process(rank) for rank in ranks), reads, alone=False)
    tell({"imported": time.monotonic()})

    def be_thread(rank: int, process: ThreadProcess) -> None:
        code = 1
        try:
            code = be_rank(job, rank, watch)
        finally:
            process.code = code

    def be_agent(node: int) -> None:
        def start(agent: Agent) -> None:
            for rank in range(node * job.per_host, (node + 1) * job.per_host):
                if job.is_process(rank):
                    agent.adopt(rank, Child(job, rank))
                    continue
                process = ThreadProcess()
                agent.adopt(rank, process)
                threading.Thread(target=be_thread, args=(rank, process), daemon=True).start()

        address = f"10.0.0.{node + 1}"
        hello = AgentHello(node, job.ranks // job.per_host, job.per_host, f"host{node}", address, "", ())
        AgentService(Meeting(node, "127.0.0.1", job.port, "127.0.0.1"), TOKEN, hello, JOIN_S, lambda _: "").serve(start)

    agents = [threading.Thread(target=be_agent, args=(node,)) for node in nodes]
    for agent in agents:
        agent.start()
    for agent in agents:
        agent.join()
    if len(watch.taken) == 3:
        watch.tell()
    return 0


class TimedCoordinator:
    """A coordinator, and the processor time of its process in the counted steps, and in exchanges."""

    def __init__(self, inner: Coordinator) -> None:
        self.inner = inner
        self.first: float | None = None
        self.turn: float | None = None
        self.last = 0.0

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Note when steps begin, and when exchanges begin and end."""
        message = event.message if isinstance(event, Received) else None
        if isinstance(message, Call | Gather):
            self.last = time.process_time()
            if self.first is None and isinstance(message, Call) and message.sequence == 2:
                self.first = self.last
            if self.turn is None and isinstance(message, Gather) and not message.greatest:
                self.turn = self.last
        return self.inner.handle(event, now)

    def took(self) -> tuple[float, float]:
        """Give the seconds of steps and of exchanges."""
        if self.first is None or self.turn is None:
            return 0.0, 0.0
        return self.turn - self.first, self.last - self.turn


@dataclass(frozen=True)
class Told:
    """What a run took.

    Args:
        status: its exit status.
        joined_s: seconds from the last import to the last join.
        alone_ms: processor time of a step for each rank that is a process, the coordinator's included; 0 where none is.
        step_ms: the same for all ranks.
        coordinator_ms: of this the coordinator's.
        exchange_ms: likewise of an exchange, for all ranks.
        coordinator_exchange_ms: likewise.
        grown_bytes: what its process grew by, for each rank.
    """

    status: int
    joined_s: float
    alone_ms: float
    step_ms: float
    coordinator_ms: float
    exchange_ms: float
    coordinator_exchange_ms: float
    grown_bytes: float


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def run(job: Job, workers: int) -> Told:
    """Run all."""
    nodes = job.ranks // job.per_host
    roster = Roster([Seat() for _ in range(nodes)], job.per_host)
    timed = TimedCoordinator(Coordinator(job.ranks, job.per_host, JOIN_S, roster=roster))
    before = resident()
    with Supervisor(timed, TOKEN, None) as supervisor:  # type: ignore[arg-type]  # it only asks it to handle events
        told_job = {**vars(job), "port": int(supervisor.endpoint.rpartition(":")[2])}
        parts = [list(range(nodes))[place::workers] for place in range(min(workers, nodes))]
        commands = [[sys.executable, __file__, "--be", "worker", json.dumps([told_job, part])] for part in parts]
        started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
        try:
            status = supervisor.watch().status
            grown = resident() - before
            supervisor.settle()
            lines = [line for process in started for line in process.communicate(timeout=60)[0].splitlines()]
        finally:
            for process in started:
                process.kill()
                process.wait()
    said = [json.loads(line) for line in lines]
    imported = max(each["imported"] for each in said if "imported" in each)
    ends = [each for each in said if "joined" in each]
    steps = job.ranks * job.steps / 1e3
    own, own_exchange = (0.0, 0.0) if job.counts else timed.took()
    alone = [each["steps"] for each in ends if each["alone"]]
    return Told(
        status,
        max((each["joined"] for each in ends), default=imported) - imported,
        1e3 * statistics.mean(alone) / job.steps + own / steps if alone else 0.0,
        (own + sum(each["steps"] for each in ends)) / steps,
        own / steps,
        (own_exchange + sum(each["exchanges"] for each in ends)) / steps,
        own_exchange / steps,
        grown / job.ranks,
    )


def main() -> int:
    """Run each size, and print what it took."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--ranks", type=int, nargs="+", default=[2, 64])
    asked.add_argument("--per-host", type=int, default=4)
    asked.add_argument("--workers", type=int, default=4)
    asked.add_argument("--processes", type=int, default=8)
    asked.add_argument("--steps", type=int, default=20)
    asked.add_argument("--pace", type=float, default=0.0, help="seconds")
    asked.add_argument("--count", action="store_true", help="count calls, and take no times")
    asked.add_argument("--be", choices=["worker", "rank"], help=argparse.SUPPRESS)
    asked.add_argument("told", nargs="?", help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.be is not None:
        described, place = json.loads(given.told)
        return be_worker(Job(**described), place) if given.be == "worker" else be_process(Job(**described), place)
    unit = "  " if given.count else "ms"
    print("                          step of a rank that is")
    print("ranks agents processes  joined  a process  any  coordinator  exchange  coordinator  grew/rank  status")
    bad, first = False, None
    for size in given.ranks:
        job = Job(
            size, min(given.per_host, size), min(given.processes, size // 2), given.steps, given.count, given.pace
        )
        told = run(job, given.workers)
        print(
            f"{size:5} {size // job.per_host:6} {job.processes:9} {told.joined_s:6.1f}s {told.alone_ms:7.2f} {unit} "
            f"{told.step_ms:7.2f} {unit} {told.coordinator_ms:7.2f} {unit} {told.exchange_ms:7.2f} {unit} "
            f"{told.coordinator_exchange_ms:7.2f} {unit} "
            f"{told.grown_bytes / 1024:6.1f} KiB {told.status:7}",
            flush=True,
        )
        first = first or told
        if told is not first:
            alone = f"{told.alone_ms / first.alone_ms:.2f}" if first.alone_ms else "-"
            both = f"{alone} (processes) and {told.step_ms / first.step_ms:.2f} (all)"
            print(f"a step takes {both} times that of {given.ranks[0]} ranks", flush=True)
        bad = bad or told.status != 0
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
