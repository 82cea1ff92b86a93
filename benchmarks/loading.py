"""What a loader feeds to two ranks beside what their storage gives.

    maniple run --nodes 2 --cores 1 benchmarks/loading.py --folder DISK
    maniple run --nodes 2 --cores 1 benchmarks/loading.py --folder DISK --samples 256 --rounds 1     tries that it runs

Samples of 256 KiB lie in one file, out of the page cache before each turn. Sides take turns, an epoch each, with as
many threads in each rank; figures are medians over rounds:

    direct     each rank reads its half of every batch, in the same order, into memory that it has: what the disk gives
    loader     `trainer.run(loader)`: the same rows become the tiles of a step of a small linear layer

Of the loader the bytes that each rank read are counted: its share is half.
"""

from __future__ import annotations

import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import click
import torch

import maniple as mp
from maniple.sample_order import order

FLOATS = 1 << 16
SIZE = 4 * FLOATS
BATCH = 32


class Rows:
    """Rows of a file as samples.

    Args:
        path: the file.
        count: how many it has.
    """

    def __init__(self, path: Path, count: int) -> None:
        self.file, self.count, self.read = os.open(path, os.O_RDONLY), count, 0

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
        got = os.preadv(self.file, [memoryview(row.numpy()).cast("B")], index * SIZE)
        if got != SIZE:
            raise OSError(f"row {index}: expected {SIZE} bytes, got {got}")

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


@click.command()
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), required=True, help="On the disk.")
@click.option("--samples", default=2048, show_default=True)
@click.option("--workers", default=4, show_default=True)
@click.option("--rounds", default=5, show_default=True)
def main(folder: Path, samples: int, workers: int, rounds: int) -> None:
    """Measure."""
    world, meet = mp.world(), mp.world().control.gather
    if world.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        written(folder, samples)
    meet(b"")
    rows, labels = Rows(folder / "rows", samples), torch.zeros(samples, dtype=torch.int64)
    g = mp.Graph("linear")
    x, y = g.input("x", (BATCH, FLOATS)), g.input("y", (BATCH,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(x, 2), y))
    plan = mp.search(g, mp.Machine.detect(), strategy="data_parallel")
    loader = mp.data.Loader({"x": rows, "y": labels}, batch=BATCH, seed=0, workers=workers, prefetch=4)
    times: dict[str, list[float]] = {"direct": [], "loader": []}
    with mp.Trainer(g, plan, optimizer=mp.SGD(1e-9)) as trainer:
        for turn in range(rounds + 1):  # the first lowers and compiles
            for side, found in times.items():
                rows.forget()
                meet(b"")
                begun = perf_counter()
                if side == "direct":
                    read_directly(rows, workers, turn)
                else:
                    for _ in trainer.run(loader):
                        pass
                meet(b"")
                found.append(perf_counter() - begun)
    shares = meet(str(rows.read / ((rounds + 1) * samples * SIZE)).encode())
    if world.rank == 0:
        medians = {side: statistics.median(found[1:]) for side, found in times.items()}
        for side, seconds in medians.items():
            print(f"{side:8}{seconds:8.3f} s{samples * SIZE / seconds / 1e6:10.0f} MB/s")
        ratio = statistics.median(a / b for a, b in zip(times["direct"][1:], times["loader"][1:], strict=True))
        print(
            f"the loader's speed of the storage's {ratio:.2f}; read by each rank, of all: {b' '.join(shares).decode()}"
        )
        (folder / "rows").unlink()


if __name__ == "__main__":
    main()
