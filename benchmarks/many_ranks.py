"""Many ranks on many agents: the real coordinator, agents, sockets and control planes, and what a step costs it.

python benchmarks/many_ranks.py --ranks 8 16 32 64 --per-host 4

Ranks and agents are threads of this process. What is counted are the messages and bytes that the coordinator takes in
and sends for each step; the seconds until all had joined are those of one process that does everything.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from maniple.process.environment import LaunchEnvironment
from maniple.process.headway import Headway
from maniple.runtime.cluster.agent_service import AgentService
from maniple.runtime.cluster.coordinator import Coordinator
from maniple.runtime.cluster.coordinator_event import Event, Instruction, Received, SendTo, Tick
from maniple.runtime.cluster.meeting import Meeting
from maniple.runtime.cluster.roster import Roster, Seat
from maniple.runtime.cluster.supervisor import Supervisor
from maniple.runtime.control.coordinator_client import CoordinatorClient
from maniple.runtime.transports.agent_message import AgentHello
from maniple.runtime.transports.message import Call, Gather, Heartbeat, encode
from maniple.testing.faulty_run import ThreadProcess

if TYPE_CHECKING:
    from maniple.runtime.cluster.agent import Agent

STEPS = 20
JOIN_S = 120.0
TOKEN = "0123456789abcdef0123456789abcdef"  # noqa: S105 - of this process alone


class CountingCoordinator:
    """A coordinator, and counts of what goes in and comes out."""

    def __init__(self, inner: Coordinator) -> None:
        self.inner = inner
        self.counts: Counter[str] = Counter()

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Count an event and what it leads to."""
        found = self.inner.handle(event, now)
        if isinstance(event, Received):
            steps = isinstance(event.message, Call | Gather)
            self.counts["step messages in" if steps else "other messages in"] += 1
            self.counts["bytes in"] += len(encode(event.message)) if steps else 0
        elif not isinstance(event, Tick):
            self.counts["other events"] += 1
        for instruction in found:
            if isinstance(instruction, SendTo):
                beat = isinstance(instruction.message, Heartbeat)
                self.counts["beats out" if beat else "messages out"] += 1
                self.counts["bytes out"] += 0 if beat else len(encode(instruction.message))
        return found


def be_rank(rank: int, size: int, per_host: int, endpoint: str, process: ThreadProcess, joined: list[float]) -> None:
    """Join, take the steps of a program, and leave."""
    launch = LaunchEnvironment(
        rank, size, rank % per_host, rank // per_host, size // per_host, per_host, 1, 1, endpoint, TOKEN, None, JOIN_S
    )
    client = CoordinatorClient(launch, f"tcp://127.0.0.1:{10_000 + rank}#{'0' * 32}", Headway(), end=lambda _: None)
    client.join()
    joined.append(time.monotonic())
    for step in range(STEPS):
        client.call(f"step {step}", b"%d" % step)
        client.gather(b"%8d" % rank)
    client.close()
    process.code = 0


def run(size: int, per_host: int) -> tuple[Counter[str], float, int | None]:
    """Run all; gives the counts, the seconds until all had joined, and the exit status."""
    nodes = size // per_host
    roster = Roster([Seat() for _ in range(nodes)], per_host)
    counting = CountingCoordinator(Coordinator(size, per_host, JOIN_S, roster=roster))
    status: list[int] = []
    joined: list[float] = []
    begun = time.monotonic()
    with Supervisor(counting, TOKEN, None) as supervisor:  # type: ignore[arg-type]  # it only asks it to handle events
        port = int(supervisor.endpoint.rpartition(":")[2])
        endpoint = f"tcp://127.0.0.1:{port}"

        def be_agent(node: int) -> None:
            def start(agent: Agent) -> None:
                for rank in range(node * per_host, (node + 1) * per_host):
                    process = ThreadProcess()
                    agent.adopt(rank, process)
                    place = rank, size, per_host, endpoint, process, joined
                    threading.Thread(target=be_rank, args=place, daemon=True).start()

            hello = AgentHello(node, nodes, per_host, f"host{node}", f"10.0.0.{node + 1}", "", ())
            service = AgentService(Meeting(node, "127.0.0.1", port, "127.0.0.1"), TOKEN, hello, JOIN_S, lambda _: "")
            service.serve(start)

        agents = [threading.Thread(target=be_agent, args=(node,), daemon=True) for node in range(nodes)]
        for agent in agents:
            agent.start()
        status.append(supervisor.watch().status)
        supervisor.settle()
        for agent in agents:
            agent.join(30)
    return counting.counts, max(joined, default=begun) - begun, status[0] if status else None


def main() -> int:
    """Run each size, and print what it cost the coordinator for each rank and step."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--ranks", type=int, nargs="+", default=[8, 16, 32, 64])
    asked.add_argument("--per-host", type=int, default=4)
    given = asked.parse_args()
    print("ranks agents  in/rank/step  out/rank/step  bytes in/rank/step  bytes out/rank^2/step  joined  status")
    bad = False
    for size in given.ranks:
        counts, seconds, status = run(size, given.per_host)
        each = size * STEPS
        print(
            f"{size:5} {size // given.per_host:6} {counts['step messages in'] / each:13.2f} "
            f"{counts['messages out'] / each:14.2f} {counts['bytes in'] / each:19.1f} "
            f"{counts['bytes out'] / each / size:22.1f} {seconds:6.1f}s {status:6}",
            flush=True,
        )
        bad = bad or status != 0
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
