"""What hosts reach between them: raw TCP, tiles over each transport, Gloo's all-reduce and ours, in turn in one run.

    python benchmarks/wire.py --rate 1gbit 10gbit none --hosts 2 4 --ranks 1
    python benchmarks/wire.py --rate 1gbit --hosts 2 --ranks 2 --transport shared

Hosts are network namespaces of this computer on one switch (root is needed), each with its rate of sending limited by
`tc ... tbf`. With a rate the figure is set by the link, as long as the cores keep up with it, and the machine of
the plan has that rate; without one it is set by the cores, which all share. Sides take turns, round by round, and of
each the median of all rounds is told.

tiles        rank 0 sends to the first rank of the last host, as many as make 64 MiB, or four; raw TCP by one socket,
             others through the copy engine, from one instance into another: sockets as they come, those of
             `--verify-tiles`, those of `--encrypt-tiles`, and Gloo
all_reduce   every rank fills a row, all rows are added up everywhere, and one element is looked at; ours are two
             launches of a trace and a fence. *Alone* is the all-reduce without what fills its row: from when the last
             rank has its row until the last one has the sum. Processor time is that of all ranks' processes, and what
             the interface of rank 0 sent in a round is told beside
predicted    of the all-reduce alone: the fold of each block with what its owner had, and then the price of the exchange
             on a machine whose links have what plain TCP has between the two hosts, both ways at once, headers and
             all, and whose memories have the bandwidth of a copy; or, where that is longer, what the one core of a host
             needs to carry the bytes, as plain TCP needed it, and to fold
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import struct
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from movement_plans import collective
from page_table import write_table
from plain_link import Side, counted, measure_link, measure_memory, plain, send_plain

import maniple as mp
from maniple.program import session
from maniple.regions.rectangle import Rect
from maniple.runtime.control.world import World
from maniple.runtime.execution.engine import DEFAULT_CREDIT_BYTES, CopyEngine
from maniple.runtime.lanes.movement_binding import Place, bind_movement
from maniple.runtime.machine.machine_part import Host, Link, Memory, Processor
from maniple.runtime.schedule.network import Network
from maniple.runtime.schedule.roofline import BANDWIDTH_EFFICIENCY
from maniple.runtime.schedule.schedule import Transfer
from maniple.runtime.transports.registry import TRANSPORTS
from maniple.runtime.transports.transport import Guard

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "end_to_end"))

TILES = (64 << 10, 1 << 20, 16 << 20)
REDUCED = (1 << 20, 16 << 20, 256 << 20)
MOST = 64 << 20
"""Bytes of tiles in a round, or four tiles."""
CARRIERS = {
    "sockets": ("zmq", {}),
    "verified": ("zmq", {"guard": Guard(verify=True)}),
    "encrypted": ("zmq", {"guard": Guard(encrypt=True)}),
    "Gloo": ("gloo", {}),
}
"""By name the transport that carries tiles, and what it is opened with."""
MARKS = "<!-- benchmarks/wire.py: begin -->", "<!-- benchmarks/wire.py: end -->"
NAMES = {"1gbit": "1 Gbit/s", "10gbit": "10 Gbit/s", "none": "no limit"}
HEAD = (
    "| hosts | link | all-reduce | program: Gloo | ours | ratio | alone: Gloo | ours | ratio | predicted | ratio |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
)
WARM_UP = 3
"""Rounds that are not told: connections are made, the trace is recorded, lowered and bound."""


# The program of each rank

READY, SUMMED = "ready", "summed"
marks = {READY: 0.0, SUMMED: 0.0}
"""When this rank had its row, and when it had the sum: by the clock that all namespaces of a computer share."""


@mp.task
def contribute(row: mp.ReduceSum) -> None:
    """Add to all of a row."""
    row += 1.0
    marks[READY] = time.perf_counter()


@mp.task
def look(row: mp.Read) -> float:
    """Look at the end of a row."""
    marks[SUMMED] = time.perf_counter()
    return float(row[-1])


@dataclass(frozen=True, slots=True)
class Round:
    """What rounds of a side took, each the median.

    Args:
        whole_s: seconds on the rank that took longest.
        alone_s: of all-reduces the seconds from when the last rank had its row until the last one had the sum.
        computed_s: seconds that the processors of all ranks computed, in all.
    """

    whole_s: float
    alone_s: float
    computed_s: float


def race(world: World, sides: dict[str, Side], rounds: int, meet: Side) -> dict[str, Round]:
    """What the rounds of each side took, once they have connected and been recorded."""
    took: dict[str, list[tuple[float, ...]]] = {name: [] for name in sides}
    for number in range(WARM_UP + rounds):
        for name, side in sides.items():
            meet()
            begun, computing = time.perf_counter(), time.process_time()
            side()
            mine = time.perf_counter() - begun, time.process_time() - computing, marks[READY], marks[SUMMED]
            parts = [struct.unpack("4d", part) for part in world.control.gather(struct.pack("4d", *mine))]
            whole, computed, ready, summed = zip(*parts, strict=True)
            if number >= WARM_UP:
                took[name].append((max(whole), max(summed) - max(ready), sum(computed)))
    return {name: Round(*map(statistics.median, zip(*each, strict=True))) for name, each in took.items()}


def send_tiles(world: World, engine: Any, ends: tuple[int, int], size: int, count: int) -> Side:
    """Send tiles through a copy engine, from one instance into another."""
    rect = Rect((0,), (size // 4,))
    tile = torch.ones(size // 4)
    place = Place(tuple(range(world.size)), {world.rank: None})

    def go() -> None:
        if world.rank not in ends:
            return
        over = threading.Semaphore(0)
        for number in range(count):
            push = Transfer(0, 1, rect)
            movement, out, into = bind_movement(
                number, [push], (), lambda _instance, _rect: tile, lambda instance: ends[instance], place
            )
            movement.finished = over.release  # type: ignore[assignment]
            engine.submit(out, into)
            engine.start(movement, number)
        for _ in range(count):
            over.acquire()

    return go


def reduce_by_gloo(elements: int) -> Side:
    """One all-reduce of torch's."""
    row = torch.empty(elements)

    def go() -> None:
        row.fill_(1.0)
        marks[READY] = time.perf_counter()
        dist.all_reduce(row)
        marks[SUMMED] = time.perf_counter()

    return go


def reduce_by_trace(elements: int) -> Side:
    """One all-reduce of ours, as a program has it: all add to a region, and all look at it."""
    ranks = mp.world().size
    row = mp.region((elements,), name=f"row of {elements}")

    def go() -> None:
        with mp.trace(f"all-reduce of {elements}"):
            mp.fill(row, 0.0)
            mp.index_launch(contribute, ranks, row)
            mp.index_launch(look, ranks, row)
        mp.fence()

    return go


def be(told: dict[str, Any]) -> None:
    """Be a rank: run all races; rank 0 prints what they took."""
    torch.set_num_threads(1)
    world = mp.world()
    interface = told["addresses"][world.node]
    ends = (0, world.size - world.ranks_per_node)
    failures: list[BaseException] = []

    def meet() -> None:
        world.control.gather(b"")
        if failures:
            raise failures[0]

    found: dict[str, Any] = {"tiles": {}, "all_reduce": {}}
    for size in told["tiles"]:
        count = max(4, MOST // size)
        with plain(world, ends, interface) as link:
            sides = {"raw TCP": send_plain(link, sends=world.rank == ends[0], size=size, count=count)}
            opened = []
            for name, (carrier, wanted) in CARRIERS.items():
                transport = TRANSPORTS.lookup(carrier)(world.rank, world.size, "0" * 32, interface, **wanted)
                told_all = world.control.gather(transport.endpoint.encode())
                transport.connect([each.decode() for each in told_all])
                engine = CopyEngine(transport, DEFAULT_CREDIT_BYTES, failures.append)
                engine.begin()
                opened.append((engine, transport))
                sides[name] = send_tiles(world, engine, ends, size, count)
            found["tiles"][size] = {
                name: each.whole_s for name, each in race(world, sides, told["rounds"], meet).items()
            }
            for engine, transport in opened:
                engine.close()
                transport.close()
    os.environ["GLOO_SOCKET_IFNAME"] = told["interfaces"][world.node]
    address = f"tcp://{told['addresses'][0]}:29500"
    dist.init_process_group("gloo", init_method=address, rank=world.rank, world_size=world.size)
    found["sent"], found["predicted"] = {}, {}
    for size in told["reduced"]:
        with plain(world, ends, interface) as link:
            meet()
            here = *measure_link(link, begins=world.rank == ends[0], size=MOST // 4), measure_memory(size)
        measured = struct.unpack("4d", world.control.gather(struct.pack("4d", *here))[ends[0]])
        sides = {"Gloo": reduce_by_gloo(size // 4), "ours": reduce_by_trace(size // 4)}
        took = race(world, sides, told["rounds"], meet)
        found["sent"][size] = {}
        for name, side in sides.items():
            meet()
            found["sent"][size][name] = counted(side, told["interfaces"][world.node])
        found["predicted"][size] = predict(world, size, measured)
        found["all_reduce"][size] = {name: asdict(each) for name, each in took.items()}
    plans = _plans()
    dist.destroy_process_group()
    if world.rank == 0:
        print(json.dumps({**found, "plans": plans}), flush=True)


def predict(world: World, size: int, measured: tuple[float, ...]) -> dict[str, float]:
    """The seconds that an all-reduce takes alone, and what they are made of; see `predicted` above.

    Args:
        world: the ranks.
        size: bytes of the row.
        measured: what `measure_link` and `measure_memory` gave.
    """
    latency_s, bandwidth, byte_s, memory = measured
    hosts = world.size // world.ranks_per_node
    network = Network.of(machine_of(hosts, bandwidth, world.ranks_per_node, latency_s, memory))
    priced_s = int(collective(network, "all_reduce", size).durations[0]) / 1e9
    block, copied = size / world.size, memory * BANDWIDTH_EFFICIENCY
    # A block is folded with what its owner had, and in the exchange with what others send: all read, the sum written.
    first_s, folds_s = 3 * block / copied, (world.size + 1) * block / copied
    carried_s = 2 * (world.size - 1) * block * byte_s
    return {
        "seconds": first_s + max(priced_s, carried_s + folds_s),
        "priced_s": priced_s,
        "bandwidth": bandwidth,
        "latency_s": latency_s,
        "byte_s": byte_s,
        "memory": memory,
    }


def _plans() -> list[str]:
    """By what the all-reduces went."""
    traces = session().tracing.traces.values()
    replays = [loaded.replay for trace in traces for loaded in trace._loaded]  # noqa: SLF001 - nobody else asks
    return sorted({plan for replay in replays for plan in replay.schedule.plans.values()})


# What starts them


def machine_of(count: int, bandwidth: float, ranks: int, latency_s: float = 1e-4, memory_s: float = 1e10) -> mp.Machine:
    """The machine that limited hosts are: what leaves a host shares its link, whatever rank it is from."""
    memories, links = range(count * ranks), []
    for memory in memories:
        card = f"card{memory // ranks}"
        links += [Link(memory, card, 0.0, 1e11), Link(card, memory, 0.0, 1e11)]
    for host in range(count):
        links += [Link(f"card{host}", "switch", latency_s, bandwidth), Link("switch", f"card{host}", 0.0, 1e11)]
    return mp.Machine(
        f"{count} hosts of {ranks}, {bandwidth / 1e6:.0f} MB/s",
        tuple(Host(host, f"host{host}") for host in range(count)),
        tuple(Memory(memory, memory, memory // ranks, 8 << 30, memory_s) for memory in memories),
        tuple(Processor(memory, "cpu", memory, 1, 1e11, f"p{memory}") for memory in memories),
        tuple(links),
        None,
        None,
        (*(f"card{host}" for host in range(count)), "switch"),
    )


def launch(count: int, rate: str, ranks: int, given: argparse.Namespace) -> dict[str, Any]:
    """Run all races on so many hosts."""
    from namespaces import switched

    names = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")[:count]
    with switched("w", names) as hosts, tempfile.TemporaryDirectory() as folder:
        for host in hosts if rate != "none" else ():
            host.limit(rate)
        told = {
            "addresses": [host.address for host in hosts],
            "interfaces": [host.interface for host in hosts],
            "tiles": given.tiles,
            "reduced": given.reduced,
            "rounds": given.rounds,
        }
        place = ["--nnodes", str(count), "--nproc-per-node", str(ranks), "--head", f"{hosts[0].address}:29400"]
        place += ["--key", str(Path(folder) / "key"), "--cores", "1", "--transport", given.transport]
        if rate.endswith("gbit"):
            machine_of(count, float(rate.removesuffix("gbit")) * 1e9 / 8, ranks).save(
                file := Path(folder) / "machine.toml"
            )
            place += ["--machine", str(file)]
        program = [str(Path(__file__).resolve()), "--be", json.dumps(told)]
        agents = [
            host.start(sys.executable, "-m", "maniple.cli", "run", *place, "--node-rank", str(node), *program)
            for node, host in enumerate(hosts)
        ]
        try:
            outs = [agent.communicate(timeout=given.timeout) for agent in agents]
        finally:
            for agent in agents:
                if agent.poll() is None:
                    os.killpg(agent.pid, signal.SIGKILL)
        if any(agent.returncode for agent in agents):
            raise SystemExit(outs[0][1])
    found: dict[str, Any] = json.loads(outs[0][0].splitlines()[-1])
    return found


def show(count: int, rate: str, ranks: int, found: dict[str, Any]) -> None:
    """Print the tables."""
    print(f"\n{count} hosts of {ranks} ranks, {rate}; all-reduces go {', '.join(found['plans']) or 'direct'}")
    for size, took in found["tiles"].items():
        sent = max(4, MOST // int(size)) * int(size)
        raw = took["raw TCP"]
        cells = [f"{name} {sent / 1e6 / each:8.0f} MB/s {raw / each:5.2f}" for name, each in took.items()]
        print(f"  tiles of {int(size) >> 10:7} KiB   {'   '.join(cells)}")
    for size, took in found["all_reduce"].items():
        told, cells = found["predicted"][size], []
        for what, name in (("whole_s", ""), ("alone_s", "alone ")):
            gloo, ours = took["Gloo"][what], took["ours"][what]
            cells.append(f"{name}Gloo {gloo * 1e3:7.1f} ms, ours {ours * 1e3:7.1f} ms {ours / gloo:5.2f}")
        cells.append(f"predicted {told['seconds'] * 1e3:7.1f} ms {ours / told['seconds']:5.2f}")
        print(f"  all-reduce of {int(size) >> 20:4} MiB   {'   '.join(cells)}")
        on_interface = [f"{name} {each[0]:,} bytes in {each[1]} packets" for name, each in found["sent"][size].items()]
        computed = [f"{name} {each['computed_s'] * 1e3:.1f} ms" for name, each in took.items()]
        print(f"{'':24}rank 0 sends: {', '.join(on_interface)}; all ranks compute: {', '.join(computed)}")
        bandwidth, byte_ns, memory = told["bandwidth"] / 1e6, told["byte_s"] * 1e9, told["memory"] / 1e9
        print(
            f"{'':24}plain TCP both ways {bandwidth:.0f} MB/s, a byte one way {told['latency_s'] * 1e6:.0f} us, a core "
            f"{byte_ns:.2f} ns for a byte each way, memory {memory:.1f} GB/s; priced {told['priced_s'] * 1e3:.1f} ms",
            flush=True,
        )


def row_of(count: int, rate: str, size: str, found: dict[str, Any]) -> str:
    """A line of the page's table: an all-reduce of so many hosts."""
    took, cells = found["all_reduce"][size], [str(count), NAMES.get(rate, rate), f"{int(size) >> 20} MiB"]
    for what in ("whole_s", "alone_s"):
        gloo, ours = took["Gloo"][what], took["ours"][what]
        cells += [f"{gloo * 1e3:.1f} ms", f"{ours * 1e3:.1f} ms", f"{ours / gloo:.2f}"]
    predicted = found["predicted"][size]["seconds"]
    cells += [f"{predicted * 1e3:.1f} ms", f"{took['ours']['alone_s'] / predicted:.2f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Be a rank, or start all and print what they say."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--rate", nargs="+", default=["1gbit", "10gbit", "none"])
    asked.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    asked.add_argument("--ranks", type=int, nargs="+", default=[1], help="of each host")
    asked.add_argument("--transport", default="shared", help="of the all-reduces")
    asked.add_argument("--tiles", type=int, nargs="*", default=TILES, help="bytes")
    asked.add_argument("--reduced", type=int, nargs="*", default=REDUCED, help="bytes")
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--into", type=Path, help="a page to write the table of all-reduces into")
    asked.add_argument("--timeout", type=float, default=1800.0)
    asked.add_argument("--be", help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.be is not None:
        be(json.loads(given.be))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a limit of time leaves no ranks and namespaces behind
    rows = []
    for count in given.hosts:
        for ranks in given.ranks:
            for rate in given.rate:
                found = launch(count, rate, ranks, given)
                show(count, rate, ranks, found)
                rows += [row_of(count, rate, size, found) for size in found["all_reduce"]]
    if given.into is not None:
        write_table(given.into, MARKS[0], MARKS[1], "\n".join([*HEAD, *rows]))


if __name__ == "__main__":
    main()
