"""Run boundaries: what runs lose by waiting for the storage of the run before, and so what second buffers could gain.

    maniple run --nodes 2 --cores 1 benchmarks/run_boundary.py           prints a table and one JSON object
    maniple run --nodes 2 --cores 1 --transport zmq benchmarks/run_boundary.py

A run may begin while the one before is under way. Where its first steps would write what the other still reads they
wait, and two instances that take turns would spare them that. How much that could be is seen by leaving these waits
out: what is computed is then wrong, and nothing that keeps it right can be faster. `one by one` has every run wait for
the end of the one before. Sides take turns, and figures are medians over the rounds.

Waits for storage are counted as the lanes keep them: of what a step would wait for, most is implied by what its lane
has waited for already. `caller_us` is the processor time of the thread that calls, of each run: what the program itself
costs beside its lanes, which have threads of their own. `border_us` is the time from the end of a lane's last task of a
run to the start of its first task of the next, of a training step: what a lane idles there. That first task is the
arrival of an input, which waits for no value.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Collection
from functools import partial
from itertools import pairwise

import click
import numpy as np
import torch

import maniple as mp
from maniple.models import digits_cnn, mlp
from maniple.runtime.execution import replay
from maniple.runtime.schedule.lane import Layout, StepKind
from maniple.runtime.schedule.schedule import InstanceKind
from maniple.runtime.schedule.step_table import ComparedUses

SIDES = ("as it is", "no waits for storage", "one by one")
NAMED = ("data_parallel", "model_parallel", "expert")


class Careless(Layout):
    """Lanes whose steps do not wait for what the run before does with storage, only for values that it leaves."""

    def _compared(self, *, carried: bool) -> tuple[ComparedUses, ComparedUses]:
        before, after = super()._compared(carried=carried)
        if not carried:
            return before, after
        kinds = np.asarray([int(draft.kind) for draft in self._drafts])
        moves = np.isin(kinds, (StepKind.PUSH, StepKind.START))[self.uses.step]
        lasts = (self.schedule.instances.kind == InstanceKind.MAIN)[self.uses.instance]
        lasts &= ~np.isin(self.uses.instance, list(self.planned))
        rects = self.schedule.rects
        earlier, later = self.uses.where(lasts), self.uses.where(lasts & ~(moves & self.uses.writes))
        return ComparedUses.of(earlier, rects, after), ComparedUses.of(later, rects, after)


def waits(loaded: replay.Replay) -> int:
    """The waits for the run before that this rank's lanes keep."""
    return sum(value <= 0 for steps in loaded.lanes.steps.values() for step in steps for _, value in step.waits)


Go = Callable[[int], None]


def border(trainer: mp.Trainer, samples: int, batch: tuple[torch.Tensor, ...], steps: int) -> float:
    """Microseconds that the lanes of this rank idle between two runs of so many, the median of all."""
    loaded = trainer._load("step", samples).replay  # noqa: SLF001
    processors = np.asarray(loaded.schedule.processor)
    here = np.asarray([loaded.here(row) for row in range(len(processors))])
    lanes = [np.flatnonzero(here & (processors == each)) for each in np.unique(processors[here]) if each >= 0]
    before, spans = loaded._submitted, []  # noqa: SLF001
    for number, _ in enumerate(trainer.run([batch] * steps)):
        # The next run writes its times beside these, and the one after it is not submitted yet.
        begun, ended = (np.asarray(each) for each in loaded.times[(before + number) % len(loaded.times)])
        spans.append([(begun[rows][begun[rows] > 0].min(), ended[rows].max()) for rows in lanes])
    between = [
        later[0] - earlier[1] for first, second in pairwise(spans) for earlier, later in zip(first, second, strict=True)
    ]
    return float(np.median(between)) / 1e3


Made = tuple[dict[str, Go], list[int], Callable[[int], float] | None]
"""The sides, the waits of the first two of them, and what measures borders of so many runs, where there is one."""


def trainers(graph: mp.Graph, strategy: str, batch: tuple[torch.Tensor, ...]) -> Made:
    """A training step, as each side runs it so many times."""
    plan = mp.search(graph, mp.Machine.detect(), strategy=strategy)
    found, counted, borders = {}, [], None
    for side, layout in zip(SIDES, (Layout, Careless), strict=False):
        replay.Layout = layout  # type: ignore[misc]
        trainer = mp.Trainer(graph, plan, optimizer=mp.SGD(lr=1e-3, momentum=0.9))
        found[side] = partial(_train, trainer, batch)
        counted.append(waits(trainer._load("step", graph.batch).replay))  # noqa: SLF001
        if side == SIDES[0]:
            found[SIDES[2]] = partial(_train_one_by_one, trainer, batch)
            borders = partial(border, trainer, graph.batch, batch)
    replay.Layout = Layout  # type: ignore[misc]
    return found, counted, borders


def _train(trainer: mp.Trainer, batch: tuple[torch.Tensor, ...], steps: int) -> None:
    for _ in trainer.run([batch] * steps):
        pass


def _train_one_by_one(trainer: mp.Trainer, batch: tuple[torch.Tensor, ...], steps: int) -> None:
    for _ in range(steps):
        trainer.step(*batch)


@mp.task
def relax(output: mp.WriteDiscard, near: mp.Read) -> None:
    """A stencil's task."""
    output.copy_(near[: len(output)])


def stencil(words: int, steps: int) -> Made:
    """A trace of a few steps of a stencil with a row on each rank, run again without a fence in between."""
    rows = mp.world().size
    own = mp.rectangles([((row, 0), (row + 1, words)) for row in range(rows)])
    near = mp.rectangles([((max(0, row - 1), 0), (min(row + 2, rows), words)) for row in range(rows)])
    found, counted = {}, []
    for side, layout in zip(SIDES, (Layout, Careless), strict=False):
        replay.Layout = layout  # type: ignore[misc]
        buffers = [mp.region((rows, words), name=f"{side} {parity}") for parity in range(2)]
        for buffer in buffers:
            mp.fill(buffer, 0.0)
        name = f"{words} words, {side}"
        launches = [(buffers[step % 2][own], buffers[1 - step % 2][near]) for step in range(steps)]
        for _ in range(3):
            with mp.trace(name):
                for output, read in launches:
                    mp.index_launch(relax, own.colors, output, read)
        found[side] = partial(_replay, name, buffers, fence=False)
        if side == SIDES[0]:
            found[SIDES[2]] = partial(_replay, name, buffers, fence=True)
        mp.fence()
        current = buffers[0].session.runtime.under_way.current
        counted.append(0 if current is None else waits(current))
    replay.Layout = Layout  # type: ignore[misc]
    return found, counted, None


def _replay(name: str, buffers: list[mp.Region], runs: int, *, fence: bool) -> None:
    """Replay a trace so often; it is forgotten with its regions, so they are held."""
    del buffers
    for _ in range(runs):
        mp.trace(name).replay()
        if fence:
            mp.fence()
    mp.fence()


def timed(sides: dict[str, Go], runs: int, rounds: int) -> tuple[dict[str, list[float]], list[float]]:
    """Time the sides in turn: microseconds a run, one figure per round; and those of the first side's caller."""
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    called: list[float] = []
    for turn in range(rounds + 1):
        for side in SIDES:
            mp.world().control.gather(b"")
            begun, worked = time.perf_counter(), time.thread_time()
            sides[side](runs)
            if turn:
                found[side].append(1e6 * (time.perf_counter() - begun) / runs)
            if turn and side == SIDES[0]:
                called.append(1e6 * (time.thread_time() - worked) / runs)
    return found, called


def cases(names: Collection[str]) -> dict[str, tuple[Callable[[], Made], int]]:
    """By name, what makes the sides, and how often a round runs them."""
    made = torch.Generator().manual_seed(0)
    found: dict[str, tuple[Callable[[], Made], int]] = {}
    for label, graph, shape, runs in (
        ("MLP, 256 samples", mlp, (256, 784), 6),
        ("digits, 64 samples", digits_cnn, (64, 1, 8, 8), 20),
        ("digits, 8 samples", digits_cnn, (8, 1, 8, 8), 40),
    ):
        batch = torch.randn(shape, generator=made), torch.randint(0, 10, shape[:1], generator=made)
        for strategy in NAMED:
            found[f"{label}, {strategy}"] = partial(trainers, graph(batch=shape[0]), strategy, batch), runs
    for words, runs in ((4, 300), (1 << 14, 100)):
        found[f"stencil of 4 steps, {4 * words} bytes"] = partial(stencil, words, 4), runs
    return {name: case for name, case in found.items() if not names or name in names}


@click.command()
@click.option("--rounds", default=9, show_default=True, help="rounds; figures are medians over them")
@click.option("--case", "names", multiple=True, help="by name; default all")
@click.option("--json", "as_json", is_flag=True, help="print the JSON object alone")
def main(*, rounds: int, names: tuple[str, ...], as_json: bool) -> None:
    """Measure on both ranks, and print at rank 0."""
    results = []
    for name, (make, runs) in cases(names).items():
        sides, counted, borders = make()
        times, called = timed(sides, runs, rounds)
        idle = [] if borders is None else [borders(runs) for _ in range(rounds)]
        ratios = {
            side: statistics.median(a / b for a, b in zip(times[side], times[SIDES[0]], strict=True)) for side in SIDES
        }
        entry = {
            "case": name,
            "us": round(statistics.median(times[SIDES[0]]), 1),
            "caller_us": round(statistics.median(called), 1),
            "border_us": round(statistics.median(idle), 1) if idle else None,
            "waits": counted[0],
            "waits_for_values": counted[1],
            "ratio": {side: round(ratio, 3) for side, ratio in ratios.items()},
        }
        if mp.world().rank == 0 and not as_json:
            spent = f"caller {entry['caller_us']:6.1f}  border {entry['border_us'] or '-':>6}"
            told = f"{entry['us']:10.1f} us  {spent}  waits {counted}  {entry['ratio']}"
            print(f"{name:32} {told}", flush=True)
        results.append(entry)
    if mp.world().rank == 0:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
