"""What checkpoints cost: resuming beside a fresh start, steps with a save among them, and plans adopted in place.

    python benchmarks/checkpoints.py --folder DISK                           32 MiB of parameters, AdamW, 2 processors
    python benchmarks/checkpoints.py --folder DISK --width 64 --rounds 1     tries that it runs

Printed, medians over the rounds:

    fresh, resumed       seconds to make a trainer, and to resume one whose files are not in the page cache
    read                 seconds to read as many bytes from the same disk in one file, not in the cache either
    steps, with a save   seconds of 100 steps, and of 100 with one `save(wait=False)` after the tenth
    ratio, ratio again   of the latter to the mean of the 100 steps before them and the 100 behind them, for the
                         trainer's first save and for a further one
    call, call again     seconds that this save kept the program, the trainer's first, and those of a further one
    copy, copy again     those of one copy of all homes into memory that is taken for it, and into the same once more
    faults, faults again page faults of the thread that called `save`, each of which has the system clear a page
    adopted              seconds of going from data parallelism to a random plan and back; in one memory nothing moves
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_THREAD, getrusage
from time import perf_counter

import click
import torch

import maniple as mp

STEPS = 100
BATCH = 32


def network(width: int) -> mp.Graph:
    """Give a perceptron of two square layers."""
    g = mp.Graph("perceptron")
    x, y = g.input("x", (BATCH, width)), g.input("y", (BATCH,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(g.relu(g.linear(g.relu(g.linear(x, width)), width)), 10), y))
    return g


def seconds(work: Callable[[], object]) -> float:
    """Give how long something takes."""
    begun = perf_counter()
    work()
    return perf_counter() - begun


def drop_cache(folder: Path) -> None:
    """Have the page cache let go of the files below a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def measure(width: int, folder: Path) -> dict[str, float]:
    """Give the figures of one round."""
    graph, machine = network(width), mp.Machine.cpu(2)
    plan = mp.search(graph, machine, strategy="data_parallel")
    other = mp.search(graph, machine, strategy="random", seed=1)
    x, y = torch.randn(BATCH, width), torch.randint(10, (BATCH,))
    found: dict[str, float] = {}
    begun = perf_counter()
    trainer = mp.Trainer(graph, plan, optimizer=mp.optim.AdamW(lr=1e-4))
    found["fresh"] = perf_counter() - begun
    with trainer:
        for _ in range(10):
            trainer.step(x, y)

        def steps() -> float:
            return seconds(lambda: [trainer.step(x, y) for _ in range(STEPS)])

        before = found["steps"] = steps()

        def call(again: str) -> None:
            before = getrusage(RUSAGE_THREAD).ru_minflt
            found[f"call{again}"] = seconds(lambda: trainer.save(folder / "saved", wait=False))
            found[f"faults{again}"] = getrusage(RUSAGE_THREAD).ru_minflt - before

        def save_among(again: str) -> None:
            for step in range(STEPS):
                if step == 10:
                    call(again)
                trainer.step(x, y)

        for again in ("", " again"):
            found[f"with a save{again}"] = took = seconds(lambda again=again: save_among(again))
            after = steps()
            found[f"ratio{again}"], before = 2 * took / (before + after), after
            trainer.save(folder / "saved")
        state = [*trainer.state_dict().values(), *trainer.optimizer_state().values()]
        copies: list[torch.Tensor] = []
        found["copy"] = seconds(lambda: copies.extend(value.clone() for value in state))
        found["copy again"] = seconds(lambda: [to.copy_(value) for to, value in zip(copies, state, strict=True)])
        copies.clear()
        found["adopted"] = seconds(lambda: (trainer.adopt(other), trainer.adopt(plan)))
    drop_cache(folder)
    begun = perf_counter()
    with mp.Trainer.resume(folder / "saved", graph, plan) as resumed:
        found["resumed"] = perf_counter() - begun
        size = found["read bytes"] = resumed.bytes_read
    (folder / "one").write_bytes(bytes(size))
    drop_cache(folder)
    found["read"] = seconds((folder / "one").read_bytes)
    return found


@click.command()
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="On the disk that is measured.")
@click.option("--width", default=2048, help="Of the layers.")
@click.option("--rounds", default=5)
def main(folder: Path | None, width: int, rounds: int) -> None:
    """Measure."""
    found = []
    for _ in range(rounds + 1):  # the first compiles and loads
        with tempfile.TemporaryDirectory(dir=folder) as made:
            found.append(measure(width, Path(made)))
    for name in found[0]:
        print(f"{name:17} {statistics.median(one[name] for one in found[1:]):14.6g}")


if __name__ == "__main__":
    main()
