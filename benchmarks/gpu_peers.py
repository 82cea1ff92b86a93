"""What a tile costs between GPUs of two ranks of one host, by each way that it can take.

    python benchmarks/gpu_peers.py [--json FILE]                    two ranks on CUDA, by one way after the other
    python benchmarks/gpu_peers.py --device null --small            a rehearsal; no time of that means anything

A region goes from rank to rank: each task adds one to all of it, on the GPU of the other rank than the task before. Its
values are checked at the end. Tiles are whole, so that nothing is packed, or rows with gaps between them. What is told
is a hop, tile and task together, the median over replays of a trace; and what it would be if the tile had arrived
already, from the same tasks on one rank.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import maniple as mp
from maniple.process import environment
from maniple.runtime.devices.cuda_device import why_no_cuda
from maniple.runtime.machine import peer_link

SIZES = {"64 KiB": 64 << 10, "1 MiB": 1 << 20, "8 MiB": 8 << 20, "64 MiB": 64 << 20}
SMALL = {"4 KiB": 4 << 10}
HOPS, REPLAYS = 8, 7
ROW = 256  # elements of a row with a gap behind it as long
WAYS = {"as chosen": None, "devices": 0, "host": 1 << 62, "sockets": None}
"""From which size on tiles go through memory of devices; sockets are another transport."""


@mp.task
def add_one(x: mp.ReadWrite) -> None:
    """Add one to all of a tile."""
    x += 1


@add_one.variant("cuda", captured=True)
def add_one_there(x: torch.Tensor) -> None:
    """Add one to all of a tile, in its stream."""
    x.add_(1)


class InTurn(mp.Mapper):
    """Has one task after the other run on the ranks of a list, in turn.

    Args:
        processor: which one a task runs on.
    """

    def __init__(self, processor: int) -> None:
        self.processor = processor

    def shard(self, launch: mp.plugins.LaunchView) -> Sequence[int]:
        """Its rank."""
        return [launch.machine.rank_of(self.processor)]

    def select_processor(self, task: mp.plugins.TaskView) -> int:
        """See the class."""
        return self.processor


def hop_us(size: int, *, gaps: bool, apart: bool) -> tuple[float, bool]:
    """Microseconds of a hop, and whether all values were right.

    Args:
        size: bytes of the tile.
        gaps: whether it lies in rows with gaps.
        apart: whether tasks alternate between ranks.
    """
    count = size // 4
    shape = (count // ROW, 2 * ROW) if gaps else (count // ROW, ROW)
    region = mp.region(shape, name="tile")
    mp.fill(region, 0.0)
    halves = mp.blocks((1, 2)) if gaps else mp.blocks((1, 1))
    mappers = [InTurn(number) for number in range(2)]
    name, times = f"{size} {gaps} {apart}", []

    def hops() -> None:
        for number in range(HOPS):
            mp.launch(add_one, region[halves][0, 0], mapper=mappers[number % 2 if apart else 0])

    for _ in range(3):
        with mp.trace(name):
            hops()
    mp.fence()
    for _ in range(REPLAYS):
        begun = time.perf_counter()
        mp.trace(name).replay()
        mp.fence()
        times.append(1e6 * (time.perf_counter() - begun) / HOPS)
    found, wanted = region.read(), float(HOPS * (3 + REPLAYS))
    right = bool((found[:, :ROW] == wanted).all()) and (not gaps or bool((found[:, ROW:] == 0).all()))
    return statistics.median(times), right


def measure(way: str, told: Path, *, small: bool) -> int:
    """Measure one way on this rank; rank 0 tells. Returns the exit status."""
    least = WAYS[way]
    if least is not None:
        peer_link.TURNS_WORTH = least
    status = 0
    for name, size in (SMALL if small else SIZES).items():
        for gaps in (False, True):
            hop, right = hop_us(size, gaps=gaps, apart=True)
            alone, _ = hop_us(size, gaps=gaps, apart=False)
            status |= not right
            if mp.world().rank == 0:
                found = {"way": way, "tile": name, "gaps": gaps, "hop_us": hop, "task_us": alone, "right": right}
                print(f"{way:10s} {name:>7s} {'gaps' if gaps else 'whole'}: {hop:9.1f} us, {alone:9.1f} with no tile"
                      f"{'' if right else '   WRONG'}", flush=True)  # fmt: skip
                with told.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(found) + "\n")
    return status


def main() -> int:
    """Run as a rank; or start two for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there, a line of JSON for each")
    parser.add_argument("--device", default="cuda", help="null to rehearse")
    parser.add_argument("--small", action="store_true", help="one small tile")
    parser.add_argument("--way", choices=WAYS, help="this one alone")
    given = parser.parse_args()
    if environment.read() is not None:
        return measure(given.way, given.json, small=given.small)
    if given.device == "cuda" and not torch.cuda.is_available():
        reason = why_no_cuda()
        print(f"no GPU: {reason}; nothing was measured")
        return 0
    from maniple.runtime.cluster.launcher import LaunchRequest
    from maniple.runtime.cluster.run import run

    status = 0
    with tempfile.TemporaryDirectory() as folder:
        told = (given.json or Path(folder) / "found.json").absolute()
        for way in [given.way] if given.way else WAYS:
            arguments = ("--way", way, "--json", str(told), *(("--small",) if given.small else ()))
            transport = "zmq" if way == "sockets" else "shared"
            sys.stdout.flush()
            status |= run(LaunchRequest((__file__, *arguments), nodes=2, device=given.device, transport=transport))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
