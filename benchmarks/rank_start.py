"""The start of a job's ranks: forked from one process that imported torch for all, or each an interpreter of its own.

python benchmarks/rank_start.py --ranks 1 2 4 16 64

Each job joins, exchanges a word, and ends. Processor seconds are those of all its processes, launcher and nursery among
them, and less disturbed by what else runs than the seconds until all had joined.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

PROGRAM = """
import maniple as mp
import torch

world = mp.world()
print("joined", len(world.control.gather(b"here")), torch.zeros(1).numel(), flush=True)
"""
WAYS = {"forked": (), "fresh": ("--fresh",)}


class Start(NamedTuple):
    """What the start of a job took.

    Args:
        joined_s: seconds until all ranks had joined.
        ended_s: until the job had ended.
        processor_s: of all its processes, in user and in kernel mode.
    """

    joined_s: float
    ended_s: float
    processor_s: float


def start(ranks: int, way: str) -> Start:
    """Run a job.

    Raises:
        RuntimeError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "joins.py"
        script.write_text(PROGRAM)
        command = [sys.executable, "-m", "maniple.cli", "run", "--ranks-per-node", str(ranks), "--cores", "1"]
        command += ["--no-bind", "--join-timeout", "600", "--log-dir", folder, *WAYS[way], str(script)]
        before, begun = processor_s(), time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
            line = "" if job.stdout is None else job.stdout.readline()
            joined_s = time.monotonic() - begun
            _, said = job.communicate()
        if line != f"joined {ranks} 1\n" or job.returncode:
            raise RuntimeError(f"{ranks} ranks, {way}: exit status {job.returncode}; {said}")
        return Start(joined_s, time.monotonic() - begun, processor_s() - before)


def processor_s() -> float:
    """Give the processor seconds of all children that have ended, and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Start jobs of each size in each way, and print what they took."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 16])
    asked.add_argument("--ways", nargs="+", choices=sorted(WAYS), default=sorted(WAYS))
    given = asked.parse_args()
    print("ranks  way     joined   ended  processor  of it each rank beyond the first")
    first: dict[str, Start] = {}
    for ranks in given.ranks:
        for way in given.ways:
            took = start(ranks, way)
            before, more = first.setdefault(way, took), ranks - given.ranks[0]
            each = f"{(took.processor_s - before.processor_s) / more:.2f}s" if more else "-"
            seconds = f"{took.joined_s:6.1f}s {took.ended_s:6.1f}s {took.processor_s:9.1f}s"
            print(f"{ranks:5}  {way:6} {seconds}  {each}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
