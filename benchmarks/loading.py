"""What a loader feeds to two ranks beside what their storage gives.

    maniple run --nodes 2 --cores 1 benchmarks/loading.py --folder DISK
    maniple run --nodes 2 --cores 1 benchmarks/loading.py --folder DISK --samples 256 --rounds 1     tries that it runs
    maniple run --nodes 2 --cores 1 benchmarks/loading.py --folder DISK --read-ms 30 --samples 640  a slow disk

Samples of 256 KiB lie in one file, out of the page cache before each turn. Sides take turns, an epoch each, in an order
that goes round, with as many threads in each rank; figures are medians over rounds:

    direct     each rank reads its half of every batch, in the same order, into memory that it has: what the disk gives
    fed        the loader's batches, of which each rank takes its half, and no step
    stepped    `trainer.run(loader)`: the same rows become the tiles of a step of a small linear layer

Told beside them, of rank 0: the seconds in which it had no read under way, how many reads there were at once in the
mean, and how long its core worked, for the program and for the system. Where a read is always under way the loader
keeps its storage busy; where none is and the core works all the time, the step is what takes so long. With `--read-ms`
a read takes so long and no disk: what is left of a difference is the loader's own order of things.

Of the loader the bytes that each rank read are counted: its share is half.
"""

from __future__ import annotations

import os
import resource
import statistics
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter, sleep
from typing import NamedTuple

import click
import torch

import maniple as mp
from maniple.sample_order import order

FLOATS = 1 << 16
SIZE = 4 * FLOATS
BATCH = 32


class Turn(NamedTuple):
    """What a turn of a side took.

    Args:
        seconds: all in all.
        idle: seconds without a read under way.
        depth: reads under way, in the mean.
        worked: seconds of the rank's processor, of program and system.
    """

    seconds: float
    idle: float
    depth: float
    worked: float


class Depth:
    """How many reads are under way, over time."""

    def __init__(self) -> None:
        self._lock, self._now = threading.Lock(), 0
        self.begin()

    def begin(self) -> None:
        """Begin to count."""
        self.last, self.idle, self.sum = perf_counter(), 0.0, 0.0

    def change(self, by: int) -> None:
        """Begin or end a read."""
        with self._lock:
            at = perf_counter()
            self.sum += self._now * (at - self.last)
            self.idle += (at - self.last) * (self._now == 0)
            self.last, self._now = at, self._now + by


class Rows:
    """Rows of a file as samples.

    Args:
        path: the file.
        count: how many it has.
        read_s: seconds that a read takes instead of the disk's; 0 for the disk.
    """

    def __init__(self, path: Path, count: int, read_s: float) -> None:
        self.file, self.count, self.read_s, self.read = os.open(path, os.O_RDONLY), count, read_s, 0
        self.depth = Depth()

    def __len__(self) -> int:
        """How many there are."""
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        """Read one."""
        row = torch.empty(FLOATS)
        self.fill(index, row)
        self.read += SIZE
        return row

    def fill(self, index: int, row: torch.Tensor) -> None:
        """Read one into memory that is there."""
        self.depth.change(1)
        try:
            if self.read_s:
                sleep(self.read_s)
                row.fill_(1.0)
            elif (got := os.preadv(self.file, [memoryview(row.numpy()).cast("B")], index * SIZE)) != SIZE:
                raise OSError(f"row {index}: expected {SIZE} bytes, got {got}")
        finally:
            self.depth.change(-1)

    def forget(self) -> None:
        """Have the page cache let go of the file."""
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)


def written(folder: Path, samples: int) -> Path:
    """Write the file, on storage when this returns."""
    path = folder / "rows"
    with path.open("wb") as file:
        for number in range(samples):
            file.write(torch.full((FLOATS,), float(number)).numpy().tobytes())
        file.flush()
        os.fsync(file.fileno())
    return path


def read_directly(rows: Rows, workers: int, epoch: int) -> None:
    """Read this rank's half of each batch."""
    rank, numbers = mp.world().rank, [int(number) for number in order(rows.count, 0, epoch)]
    half = BATCH // 2
    held = torch.empty(BATCH, FLOATS)
    mine = [
        numbers[first + rank * half : first + (rank + 1) * half] for first in range(0, rows.count - BATCH + 1, BATCH)
    ]
    with ThreadPoolExecutor(workers) as pool:
        jobs = [pool.submit(rows.fill, number, held[place]) for batch in mine for place, number in enumerate(batch)]
        for job in jobs:
            job.result()


def feed(loader: mp.data.Loader) -> None:
    """Take this rank's half of each batch of a loader."""
    half, rank = BATCH // 2, mp.world().rank
    mine = tuple(range(rank * half, (rank + 1) * half))
    for batch in loader:
        batch.read({"x": mine, "y": tuple(range(BATCH))})


def taken(rows: Rows, work: Callable[[], object]) -> Turn:
    """Take a turn, together with the other rank."""
    meet = mp.world().control.gather
    rows.forget()
    meet(b"")
    before, begun = resource.getrusage(resource.RUSAGE_SELF), perf_counter()
    rows.depth.begin()
    work()
    rows.depth.change(0)
    after = resource.getrusage(resource.RUSAGE_SELF)
    meet(b"")
    seconds = perf_counter() - begun
    worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Turn(seconds, rows.depth.idle, rows.depth.sum / seconds, worked)


@click.command()
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), required=True, help="On the disk.")
@click.option("--samples", default=2048, show_default=True)
@click.option("--workers", default=4, show_default=True)
@click.option("--prefetch", default=4, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--read-ms", default=0.0, help="What a read takes, instead of the disk's time.")
def main(folder: Path, samples: int, workers: int, prefetch: int, rounds: int, read_ms: float) -> None:
    """Measure."""
    world, meet = mp.world(), mp.world().control.gather
    if world.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        written(folder, samples)
    meet(b"")
    rows, labels = Rows(folder / "rows", samples, read_ms / 1e3), torch.zeros(samples, dtype=torch.int64)
    g = mp.Graph("linear")
    x, y = g.input("x", (BATCH, FLOATS)), g.input("y", (BATCH,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(x, 2), y))
    plan = mp.search(g, mp.Machine.detect(), strategy="data_parallel")
    fed, stepped = (
        mp.data.Loader({"x": rows, "y": labels}, batch=BATCH, seed=0, workers=workers, prefetch=prefetch)
        for _ in range(2)
    )
    found: dict[str, list[Turn]] = {"direct": [], "fed": [], "stepped": []}
    with mp.Trainer(g, plan, optimizer=mp.SGD(1e-9)) as trainer:
        for turn in range(rounds + 1):  # the first lowers and compiles
            sides: dict[str, Callable[[], object]] = {
                "direct": lambda turn=turn: read_directly(rows, workers, turn),
                "fed": lambda: feed(fed),
                "stepped": lambda: list(trainer.run(stepped)),
            }
            names = list(sides)
            for side in names[turn % 3 :] + names[: turn % 3]:
                found[side].append(taken(rows, sides[side]))
    shares = meet(str(rows.read / (2 * (rounds + 1) * samples * SIZE)).encode())
    if world.rank == 0:
        for side, turns in found.items():
            middle = Turn(*(statistics.median(column) for column in zip(*turns[1:], strict=True)))
            speeds = [one.seconds / own.seconds for one, own in zip(found["direct"][1:], turns[1:], strict=True)]
            print(
                f"{side:8}{middle.seconds:8.3f} s{samples * SIZE / middle.seconds / 1e6:8.0f} MB/s, of the storage's "
                f"{statistics.median(speeds):.2f}; no read under way {middle.idle:.3f} s, {middle.depth:.1f} in the "
                f"mean; the core worked {middle.worked:.3f} s"
            )
        print(f"read by each rank, of all: {b' '.join(shares).decode()}")
        (folder / "rows").unlink()


if __name__ == "__main__":
    main()
