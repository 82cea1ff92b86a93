"""A training loop with its trace named, with tracing found, and with neither, on one rank.

Linear regression by gradient descent, written as launches on row blocks: a forward task, a gradient that is reduced,
and an update, four launches a step. The three take turns, round after round; figures are medians over the rounds.

    python benchmarks/automatic_tracing.py [--steps N] [--rounds N] [--rows N] [--processors N] [--json]
"""

from __future__ import annotations

import argparse
import json
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from time import perf_counter

import torch

import maniple as mp
from maniple.mappers.default import DefaultMapper
from maniple.runtime.control.world import World
from maniple.runtime.execution.rank import RankRuntime
from maniple.runtime.session.session import Session

FEATURES = 16
WAYS = ("untraced", "annotated", "automatic")


@mp.task
def forward(x: mp.Read, y: mp.Read, w: mp.Read, error: mp.WriteDiscard) -> None:
    """How far the predictions of some rows are off."""
    error.copy_(x @ w - y)


@mp.task
def gradient(x: mp.Read, error: mp.Read, g: mp.ReduceSum) -> None:
    """What some rows add to the gradient."""
    g += x.mT @ error


@mp.task
def update(rate: float, g: mp.Read, w: mp.ReadWrite) -> None:
    """One step down."""
    w -= rate * g


class Loop:
    """One program of the loop, in a session of its own.

    Args:
        way: how it is traced.
        rows: samples.
        processors: of the one rank.
    """

    def __init__(self, way: str, rows: int, processors: int) -> None:
        self.way = way
        world = World.solo(processors=processors, cores=1)
        self.session = Session(RankRuntime(world), mp.Machine.cpu(processors), DefaultMapper())
        self.session.auto_trace(on=way == "automatic")
        self.blocks = mp.blocks((processors, 1))
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(rows, FEATURES, generator=generator)
        self.x, self.y, self.error = (self.session.region((rows, n)) for n in (FEATURES, 1, 1))
        self.g, self.w = (self.session.region((FEATURES, 1)) for _ in range(2))
        self.x.write(x)
        self.y.write(x @ torch.rand(FEATURES, 1, generator=generator))
        self.w.fill(0.0)
        self.rate = 0.1 / rows

    def run(self, steps: int) -> float:
        """Seconds per step, the wait for the last one included."""
        begin = perf_counter()
        for _ in range(steps):
            with self._around():
                self._step()
        self.session.fence()
        return (perf_counter() - begin) / steps

    def _around(self) -> AbstractContextManager[None]:
        return self.session.trace("step") if self.way == "annotated" else nullcontext()

    def _step(self) -> None:
        session, blocks = self.session, self.blocks
        rows = [region[blocks] for region in (self.x, self.y, self.error)]
        session.fill(self.g, 0.0)
        session.index_launch(forward, blocks.colors, rows[0], rows[1], self.w, rows[2])
        session.index_launch(gradient, blocks.colors, rows[0], rows[2], self.g)
        session.launch(update, self.rate, self.g, self.w)


def main() -> None:
    """Measure, and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description="Automatic tracing on a training loop.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--processors", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    loops = {way: Loop(way, options.rows, options.processors) for way in WAYS}
    for loop in loops.values():
        loop.run(100)  # recorded, found, compiled
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way, loop in loops.items():
            times[way].append(loop.run(options.steps))
    weights = [loop.w.read() for loop in loops.values()]
    same = all(torch.allclose(weights[0], other) for other in weights[1:])
    found = {way: 1e6 * median(seconds) for way, seconds in times.items()}
    ratio = found["automatic"] / found["annotated"]
    if options.json:
        rows = [{"way": way, "us_per_step": us} for way, us in found.items()]
        print(json.dumps({"results": rows, "automatic_over_annotated": ratio, "same_weights": same}))
        return
    for way, us in found.items():
        print(f"{way:10s} {us:9.1f} us a step")
    print(f"automatic / annotated: {ratio:.3f}; the same weights: {same}")


if __name__ == "__main__":
    main()
