"""A run with a fault: the real coordinator, supervisor, control planes and tiles over sockets, with ranks as threads.

    supervisor ◀── link ── control of rank 0, 1, ...        one link, or one rank, has the fault that a seed says
    rank 0     ── link ──▶ tiles of rank 1, ...             by messages, or by a stream

Every rank sends to every other what a seed says, sums up, and holds the sum against that of whoever knows all. So a run
ends in one of three ways: with the right numbers; with an error that names a rank; or with what must not be.
"""

from __future__ import annotations

import random
import re
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np

from maniple.process.environment import LaunchEnvironment
from maniple.process.error import RunError
from maniple.process.headway import Headway
from maniple.runtime.cluster.coordinator import Coordinator
from maniple.runtime.cluster.launcher import RankProcess
from maniple.runtime.cluster.supervisor import Supervisor
from maniple.runtime.control.control import RankStopped
from maniple.runtime.control.coordinator_client import CoordinatorClient
from maniple.runtime.transports.transport import Guard
from maniple.runtime.transports.zeromq import ZmqTransport
from maniple.testing.fault_link import PIECE, WIRE_FAULTS, FaultLink, LinkFault
from maniple.testing.strangers import CALLERS, STALE, Presence, StaleRank, Strangers
from maniple.testing.tile_engine import TileEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []

RANK_FAULTS = ("raise", "killed", "silent death", "leaves", "never comes")
"""What can go wrong with a rank."""
ROUNDS = 5
HANG_S, JOIN_S = 3.0, 6.0
DEADLINE_S = 45.0
"""Seconds after which a run is held to hang."""
STUCK = "no rank has got on"
"""What is said where all wait: it names the rank that waits longest, and not the link."""
_NAMED = re.compile(r"\(rank (\d+)\)")
_POLL_S = 0.05


@final
@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens in a run, as a seed says it.

    Args:
        seed: of sizes, values and places.
        size: number of ranks.
        fault: one of `WIRE_FAULTS`, `CALLERS` or `RANK_FAULTS`, or `STALE`, or `none`.
        plane: `tiles`, `streams` or `control`, of a fault of a link; `rank` of one of a rank.
        victim: the rank that sends over the link, or has the fault.
        peer: the rank that the link leads to, of tiles and streams.
        link: the fault of the link, if it is one.
        guard: what guards tiles.
        size_of_tiles: elements of each tile.
    """

    seed: int
    size: int
    fault: str
    plane: str
    victim: int
    peer: int
    link: LinkFault | None
    guard: Guard
    size_of_tiles: int

    @property
    def must_end_well(self) -> bool:
        """Whether nothing is lost by the fault: tiles that no stream takes go as messages."""
        return self.fault in {"none", "delay", *CALLERS} or (self.fault == STALE and self.plane == "streams")

    @classmethod
    def of(cls, seed: int) -> Scenario:
        """Draw one."""
        draw = random.Random(seed)
        size = draw.randint(2, 4)
        victim, peer = draw.sample(range(size), 2)
        plane = draw.choice(("tiles", "control", "rank"))
        unknown = (*CALLERS, STALE) if plane == "tiles" else ()
        fault = draw.choice(RANK_FAULTS if plane == "rank" else ("none", *WIRE_FAULTS, *unknown))
        guard = draw.choice((Guard(), Guard(verify=True), Guard(encrypt=True)))
        if plane == "tiles" and fault == "corrupt" and not guard:
            guard = Guard(verify=True)  # without a guard nothing is promised but TCP's own checksum
        last = 2 * ROUNDS if plane == "control" else ROUNDS
        message = draw.randint(0, last)
        # A rank's echo has a connection of its own, the first, and answers once a second.
        connection = draw.randint(0, 1) * (plane == "control")
        message *= not (plane == "control" and connection == 0)
        wire = LinkFault(fault, connection, message, draw.uniform(0.1, 2.5), draw.random())
        tiles = draw.choice((1, 500, 100_000))
        return cls(seed, size, fault, plane, victim, peer, wire if fault in WIRE_FAULTS else None, guard, tiles)

    @classmethod
    def on_stream(cls, seed: int) -> Scenario:
        """Draw one whose fault is on a stream of tiles."""
        draw = random.Random(seed)
        size, fault = draw.randint(2, 4), draw.choice((*WIRE_FAULTS, *CALLERS, STALE))
        victim, peer = draw.sample(range(size), 2)
        tiles = draw.choice((10_000, 100_000))
        pieces = 1 + ROUNDS * tiles * 8 // PIECE
        wire = LinkFault(fault, 0, draw.randint(0, pieces), draw.uniform(0.1, 2.5), draw.random())
        # Without a guard nothing is promised but TCP's own order and checksum.
        altered = fault in {"drop", "duplicate", "reorder", "corrupt", "malformed"}
        guard = Guard(verify=altered or draw.random() < 0.5)
        link = wire if fault in WIRE_FAULTS else None
        return cls(seed, size, fault, "streams", victim, peer, link, guard, tiles)


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Args:
        scenario: what was to happen.
        met: whether the fault met anything: a link may carry fewer messages.
        status: of the run; None where it did not end in time.
        message: what the user is told.
        wrong: what must not be: numbers that are wrong, waits that do not end, a failure that names no rank.
        left: threads of the run that are left.
        seconds: how long it took.
    """

    scenario: Scenario
    met: bool
    status: int | None
    message: str
    wrong: tuple[str, ...]
    left: int
    seconds: float


class ThreadProcess(RankProcess):
    """A rank that is a thread: it ends when its program does, or when it is killed."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.killed = threading.Event()

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.killed.set()

    def kill(self) -> None:
        self.killed.set()

    def wait(self, timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while self.code is None and time.monotonic() < end:
            time.sleep(_POLL_S)  # a thread that is joined elsewhere tells nobody else
        return self.code is not None


@dataclass(slots=True)
class _Run:
    """What the threads of a run share."""

    scenario: Scenario
    endpoints: dict[int, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    finished: set[int] = field(default_factory=set)
    links: list[FaultLink | Presence] = field(default_factory=list)


def values(scenario: Scenario, rank: int, turn: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """What a rank sends in a round."""
    generator = np.random.default_rng((scenario.seed, rank, turn))
    return generator.integers(-(2**40), 2**40, scenario.size_of_tiles)


def run(scenario: Scenario) -> Outcome:
    """Run it, and say how it ended.

    Args:
        scenario: what happens.
    """
    begun, shared, token = time.monotonic(), _Run(scenario), f"{scenario.seed:032x}"
    coordinator = Coordinator(scenario.size, 1, JOIN_S, HANG_S)
    finish: list[tuple[int, str | None]] = []
    processes = [ThreadProcess() for _ in range(scenario.size)]
    with ExitStack() as stack:
        threads = []

        def watch() -> None:
            with Supervisor(coordinator, token, None) as supervisor:
                for rank, process in enumerate(processes):
                    supervisor.agent.adopt(rank, process)
                ready.append(supervisor.endpoint)
                told.set()
                found = supervisor.watch()
                finish.append((found.status, found.message))

        ready: list[str] = []
        told = threading.Event()
        watcher = threading.Thread(target=watch, name=f"supervisor {scenario.seed}", daemon=True)
        watcher.start()
        if not told.wait(DEADLINE_S):
            raise RunError("the supervisor did not begin")
        for rank, process in enumerate(processes):
            endpoint = ready[0]
            if scenario.plane == "control" and rank == scenario.victim and scenario.link is not None:
                link = stack.enter_context(FaultLink(endpoint, scenario.link))
                shared.links.append(link)
                endpoint = link.endpoint
            name = f"rank {rank} of {scenario.seed}"
            place = shared, rank, process, endpoint, token, stack
            threads.append(threading.Thread(target=_be_rank, args=place, name=name, daemon=True))
            threads[-1].start()
        watcher.join(DEADLINE_S)
        hung = watcher.is_alive()
        for process in processes:
            process.kill()
        for thread in threads:
            thread.join(5.0)
        left = sum(thread.is_alive() for thread in (*threads, watcher))
    status, message = finish[0] if finish else (None, "")
    wrong = [*shared.wrong, *_judge(shared, scenario, status, message or "", hung=hung)]
    meets = shared.links or scenario.link is not None
    met = not meets or any(link.met.is_set() for link in shared.links)
    return Outcome(scenario, met, status, message or "", tuple(wrong), left, time.monotonic() - begun)


def _judge(shared: _Run, scenario: Scenario, status: int | None, message: str, *, hung: bool) -> list[str]:
    found = []
    if hung:
        found.append(f"no end within {DEADLINE_S:.0f} s")
    elif status == 0:
        if len(shared.finished) < scenario.size:
            found.append(f"status 0, and only ranks {sorted(shared.finished)} have their numbers")
        if scenario.plane == "rank" and scenario.fault in RANK_FAULTS:
            found.append(f"status 0, though rank {scenario.victim} {scenario.fault}")
    else:
        named = {int(rank) for rank in _NAMED.findall(message)}
        if not named:
            found.append(f"no rank is named: {message}")
        elif scenario.must_end_well:
            found.append(f"nothing was lost, and the run failed: {message}")
        elif scenario.plane == "rank" and scenario.victim not in named:
            found.append(f"rank {scenario.victim} {scenario.fault}, and is not named: {message}")
        elif scenario.plane != "rank" and not named & {scenario.victim, scenario.peer} and STUCK not in message:
            found.append(f"neither end of the link is named: {message}")
    return found


def _be_rank(shared: _Run, rank: int, process: ThreadProcess, endpoint: str, token: str, stack: ExitStack) -> None:
    """Be a rank, from its hello to its end."""
    scenario = shared.scenario
    fault = scenario.fault if scenario.plane == "rank" and rank == scenario.victim else "none"
    if fault == "never comes":
        process.killed.wait(DEADLINE_S)
        process.code = -9
        return
    launch = LaunchEnvironment(rank, scenario.size, 0, rank, scenario.size, 1, 1, 1, endpoint, token, None, JOIN_S)
    headway = Headway()
    transport = ZmqTransport(rank, scenario.size, token, guard=scenario.guard)
    code = 1
    ended = threading.Event()
    client = CoordinatorClient(launch, transport.endpoint, headway, end=lambda _: ended.set())
    try:
        welcome = client.join()
        transport.connect(_linked(shared, rank, welcome.endpoints, stack))
        engine = TileEngine(transport, client)
        try:
            code = _program(shared, rank, client, engine, headway, process, fault)
        finally:
            engine.close()
    except RankStopped:
        code = 1
    except RunError as error:
        client.fail("", f"RunError: {error}")
    finally:
        if fault in {"killed", "silent death"} and code in {-9, 1}:
            client.drop()
        else:
            client.close()
        transport.close()
        process.code = code


def _linked(shared: _Run, rank: int, endpoints: Sequence[str], stack: ExitStack) -> list[str]:
    """Give the endpoints of all ranks; where this rank is the sender, what has the fault is in place of one of them."""
    scenario, found = shared.scenario, list(endpoints)
    if scenario.plane not in {"tiles", "streams"} or rank != scenario.victim or scenario.fault == "none":
        return found
    where, _, told = found[scenario.peer].partition("#")
    framed = scenario.plane == "tiles"
    port = (where if framed else told).rpartition(":")[2]
    meets: FaultLink | Presence
    if scenario.link is not None:
        meets = FaultLink(f"tcp://127.0.0.1:{port}", scenario.link, framed=framed)
        port = meets.endpoint.rpartition(":")[2]
    elif scenario.fault == STALE:
        meets = StaleRank(scenario.peer, scenario.size, scenario.guard)
        port = meets.port(framed=framed)
    else:
        pair = rank, scenario.peer
        meets = Strangers(scenario.fault, int(port), pair, scenario.seed, framed=framed)
    stack.enter_context(meets)
    shared.links.append(meets)
    kept = where if framed else told
    changed = f"{kept.rpartition(':')[0]}:{port}"
    found[scenario.peer] = f"{changed}#{told}" if framed else f"{where}#{changed}"
    return found


def _program(
    shared: _Run,
    rank: int,
    client: CoordinatorClient,
    engine: TileEngine,
    headway: Headway,
    process: ThreadProcess,
    fault: str,
) -> int:
    """Sum up what all ranks have, round by round; gives the exit status."""
    scenario = shared.scenario
    stopped = threading.Event()
    client.on_stop(lambda _: stopped.set())
    others = [peer for peer in range(scenario.size) if peer != rank]
    for turn in range(ROUNDS):
        client.call(f"round {turn}", b"%d" % turn)
        if turn == ROUNDS // 2 and fault != "none":
            if fault == "raise":
                raise RunError("the batch is sour")
            return {"killed": -9, "silent death": 1, "leaves": 0}[fault]
        own = values(scenario, rank, turn)
        for peer in others:
            engine.send(peer, turn, own.data.cast("B"))
        with headway.waiting(), engine.changed:
            while not all((peer, turn) in engine.came for peer in others):
                if stopped.is_set() or process.killed.is_set():
                    raise RankStopped("stopped")
                if engine.failure is not None:
                    raise engine.failure
                engine.changed.wait(_POLL_S)
        total = own + sum(np.frombuffer(engine.came.pop((peer, turn)), np.int64) for peer in others)
        expected = sum(values(scenario, each, turn) for each in range(scenario.size))
        if not np.array_equal(total, expected):
            shared.wrong.append(f"rank {rank} has wrong numbers in round {turn}")
        if len(set(client.gather(total.tobytes()[:64]))) != 1:
            shared.wrong.append(f"rank {rank} was told other numbers in round {turn}")
    shared.finished.add(rank)
    return 0
