"""What a run asks of its coordinator: messages, bytes, lines of Python and connections, for ranks that are only played.

python benchmarks/coordinator_work.py --ranks 8 64 256 1024 --per-host 4

The coordinator is the real one, and is told what so many ranks and agents would tell it; nothing is started. Everything
is counted, so it is the same on every computer. `many_ranks.py` has real sockets, for fewer ranks.
"""

from __future__ import annotations

import argparse
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import maniple
from maniple.process import open_files
from maniple.runtime.cluster.coordinator import Coordinator
from maniple.runtime.cluster.coordinator_event import Event, Finish, Received, SendTo, Tick
from maniple.runtime.cluster.roster import Roster, Seat
from maniple.runtime.control.control import Roll, echo_name
from maniple.runtime.transports.agent_message import AgentHello, Exited
from maniple.runtime.transports.message import (
    PROTOCOL,
    Call,
    Gather,
    Goodbye,
    Headway,
    Heartbeat,
    Hello,
    Message,
    decode,
    encode,
    frames,
)

SOURCES = str(Path(maniple.__file__).parent / "runtime")
EXCHANGED = 8
"""Bytes of each rank's part of an exchange."""
PARTS = ("join", "call", "fence", "exchange", "second", "end")
"""What is counted apart: all come; call; learn whether any failed; exchange values; a second goes by; all end."""


@dataclass
class Tally:
    """What a part of a run took.

    Args:
        received: messages of ranks and agents.
        sent: messages to them.
        bytes_in: of what was received.
        bytes_out: of what was sent.
        lines: of the runtime's Python that were run for it, packing and sockets left out.
        read_lines: those that the ranks run to read what was sent to them.
    """

    received: int = 0
    sent: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    lines: int = 0
    read_lines: int = 0


@dataclass
class Played:
    """A run that is played.

    Args:
        ranks: how many.
        tallies: by part.
        kept: bytes that the coordinator holds in the midst of an exchange.
        finish: how it ended.
    """

    ranks: int
    tallies: dict[str, Tally] = field(default_factory=lambda: {part: Tally() for part in PARTS})
    kept: int = 0
    finish: Finish | None = None


def count_lines(work: Callable[[], Any]) -> tuple[Any, int]:
    """Do something, and count the lines of the runtime that it runs."""
    count = 0

    def line(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def call(frame: FrameType, event: str, _: object) -> Any:
        return line if frame.f_code.co_filename.startswith(SOURCES) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        return work(), count
    finally:
        sys.settrace(before)


class Told:
    """A coordinator, and the tally of what it is told."""

    def __init__(self, ranks: int, per_host: int) -> None:
        self.ranks, self.per_host, self.hosts = ranks, per_host, ranks // per_host
        roster = Roster([Seat() for _ in range(self.hosts)], per_host)
        self.coordinator = Coordinator(ranks, per_host, 60.0, roster=roster)
        self.played = Played(ranks)
        self.now = 0.0
        self.rolls = [Roll() for _ in range(ranks)]
        self._packed: dict[int, tuple[Message, int, int]] = {}

    def tell(self, part: str, events: Iterable[Event]) -> None:
        """Tell it, and count."""
        tally = self.played.tallies[part]
        for event in events:
            found, lines = count_lines(lambda event=event: self.coordinator.handle(event, self.now))
            tally.lines += lines
            if isinstance(event, Received):
                tally.received += 1
                tally.bytes_in += self.size(event.message)
            for instruction in found:
                if isinstance(instruction, SendTo):
                    tally.sent += 1
                    tally.bytes_out += self.size(instruction.message)
                    tally.read_lines += self._packed[id(instruction.message)][2]
                elif isinstance(instruction, Finish):
                    self.played.finish = instruction

    def size(self, message: Message) -> int:
        """Give the bytes of a message, packed and read once however many it goes to."""
        known = self._packed.get(id(message))
        if known is None or known[0] is not message:
            packed = encode(message)
            lines = count_lines(lambda: decode(*frames(packed)))[1]
            self._packed = {id(message): (message, len(packed), lines)}
        return self._packed[id(message)][1]

    def join(self) -> None:
        """Have all agents and ranks come."""
        agents = [
            AgentHello(node, self.hosts, self.per_host, f"host{node:04}", f"10.0.{node >> 8}.{node & 255}", "/logs", ())
            for node in range(self.hosts)
        ]
        self.tell("join", (Received(b"agent %d" % agent.node, agent) for agent in agents))
        for rank in range(self.ranks):
            node = rank // self.per_host
            endpoint = f"tcp://10.0.{node >> 8}.{node & 255}:{40_000 + rank % self.per_host}#{'0' * 32}"
            hello = Hello(rank, node, 1000 + rank, f"host{node:04}", self.ranks, endpoint, PROTOCOL, 10)
            self.tell("join", [Received(b"rank %d" % rank, hello)])

    def call(self, text: str) -> None:
        """Have all ranks make a call."""
        calls = []
        for roll in self.rolls:
            inputs = roll.add(text, b"")
            calls.append(Call(roll.sequence, roll.digest, inputs, text))
        self.tell("call", (Received(b"rank %d" % rank, call) for rank, call in enumerate(calls)))

    def fence(self, sequence: int) -> None:
        """Have all ranks learn whether anything has failed on one of them."""
        asked = Gather(sequence, b" ", greatest=True)
        self.tell("fence", (Received(b"rank %d" % rank, asked) for rank in range(self.ranks)))

    def exchange(self, sequence: int) -> None:
        """Have all ranks exchange values, and look at what is held once all but one have come."""
        last = self.ranks - 1
        first = [Received(b"rank %d" % rank, Gather(sequence, b"%8d" % rank)) for rank in range(last)]
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for event in first:
            self.tell("exchange", [event])
        self.played.kept = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        self.tell("exchange", [Received(b"rank %d" % last, Gather(sequence, b"%8d" % last))])

    def second(self) -> None:
        """Have a second go by, in which all say twice how far they are, and are asked once whether they are there."""
        for half in (1, 2):
            self.now += 0.5
            words = [Headway(rank, round(2 * self.now), False, 0) for rank in range(self.ranks)]
            self.tell("second", (Received(b"rank %d" % rank, word) for rank, word in enumerate(words)))
            self.tell("second", [Tick()] * half)
        beat = Heartbeat(0, 1)
        self.tell("second", (Received(echo_name(rank), beat) for rank in range(self.ranks)))
        self.tell("second", (Received(b"agent %d" % node, beat) for node in range(self.hosts)))

    def end(self) -> None:
        """Have all programs, and then all processes, end."""
        byes = (Goodbye(rank, roll.sequence) for rank, roll in enumerate(self.rolls))
        self.tell("end", (Received(b"rank %d" % rank, bye) for rank, bye in enumerate(byes)))
        for rank in range(self.ranks):
            self.tell("end", [Received(b"agent %d" % (rank // self.per_host), Exited(rank, 0, 0, ""))])


def play(ranks: int, per_host: int) -> Played:
    """Play a run of one call, one fence, one exchange and one second.

    Args:
        ranks: how many.
        per_host: how many of them each host has.
    """
    told = Told(ranks, per_host)
    told.join()
    told.call("step 0")
    told.fence(1)
    told.exchange(2)
    told.second()
    told.end()
    return told.played


def main() -> int:
    """Play each size, and print what it takes of the coordinator."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 256, 1024])
    asked.add_argument("--per-host", type=int, default=4)
    given = asked.parse_args()
    print("ranks part      received/rank  sent/rank  bytes in/rank  bytes out/rank  lines/rank  read by a rank")
    bad = False
    for ranks in given.ranks:
        played = play(ranks, given.per_host)
        for part, tally in played.tallies.items():
            print(
                f"{ranks:5} {part:9} {tally.received / ranks:12.2f} {tally.sent / ranks:10.2f} "
                f"{tally.bytes_in / ranks:14.1f} {tally.bytes_out / ranks:15.1f} {tally.lines / ranks:11.1f} "
                f"{tally.read_lines / ranks:15.1f}"
            )
        hosts = ranks // given.per_host
        print(
            f"{ranks:5} coordinator: {2 * ranks + hosts} connections, {played.kept / ranks:.0f} bytes held for each of "
            f"them in an exchange; a rank: 2 to it, at most {2 * (ranks - 1)} to others; "
            f"open files asked for: {open_files.count(ranks)}"
        )
        bad = bad or played.finish is None or played.finish.status != 0
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
