"""Where a pipeline's step goes beyond what balance and order allow, by term.

    python benchmarks/pipeline_terms.py               all models; prints the table of docs/explanation/pipelines.md
    python benchmarks/pipeline_terms.py gpt cnn       some

Models, stages and orders are those of benchmarks/pipelining.py. With a flush, two balanced stages and m micro-batches
take (m + 1) / 2m of the step of one process: that is *allowed*. What a step takes beyond it follows from recordings of
steps that take turns: of the pipeline on two processes, and of one process that takes the mini-batch whole, or in
micro-batches.

    smaller    (m + 1) / 2m of what passes take longer in micro-batches than whole, on one process
    beside     (m + 1) / 2m of what passes of both stages take longer beside each other than on one process
    unequal    what the order makes of the stages as they are, less what it would of equal ones that take as long
    updates    of the stage whose updates take longest, less (m + 1) / 2m of one process's
    around     before a step's first task and after its last, less (m + 1) / 2m of that on one process
    waits      the rest, which no body takes: tiles on their way, and what tasks cost beside their bodies

All are milliseconds, of medians over steps after two; they add up to the step. It needs an idle computer.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import click
from pipeline_bubble import NAMES, OPTIMIZER, ORDERS, STAGES, imported
from pipelining import pipeline_plan

import maniple as mp
from maniple.runtime.control.world import World
from maniple.strategies.pipeline.pipeline_timing import StageTimes, pipeline_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.observe.timeline import Timeline
    from maniple.strategies.pipeline.stage_costs import Order

TERMS = ("allowed", "smaller", "beside", "unequal", "updates", "around", "waits")
HEAD = f"| model | order | step | {' | '.join(TERMS)} | allowed / step |"
FORWARD, ONCE = ("forward", "input"), ("norm", "update", "assign", "fetch")
"""The parts of tasks' names that are of the forward pass, and those that come once in a step."""


@final
@dataclass(frozen=True, slots=True)
class Work:
    """What a step took, in milliseconds.

    Args:
        step: by the clock of who asked for it.
        rows: from the first task to the last.
        forward: of each rank, the bodies of forward passes.
        backward: of each rank, those of backward passes, and what folds their gradients.
        once: of each rank, what comes once in a step.
    """

    step: float
    rows: float
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    once: tuple[float, ...]

    @property
    def passes(self) -> float:
        """Both passes of all ranks."""
        return sum(self.forward) + sum(self.backward)

    @staticmethod
    def of(timeline: Timeline, step: float, ranks: int) -> Work:
        """What a recorded step took."""
        spans = [span for span in timeline.spans if span.category in {"task", "fold"}]
        kinds: list[list[float]] = [[0.0] * ranks for _ in range(3)]
        for span in spans:
            part = re.sub(r"#\d+|\[.*", "", span.name).rpartition(".")[2]
            kind = 0 if part in FORWARD else 2 if part in ONCE else 1
            kinds[kind][span.rank] += (span.end_ns - span.start_ns) / 1e6
        rows = (max(span.end_ns for span in spans) - min(span.start_ns for span in spans)) / 1e6
        forward, backward, once = map(tuple, kinds)
        return Work(step, rows, forward, backward, once)

    @staticmethod
    def middle(steps: Sequence[Work]) -> Work:
        """The median of each number over some steps."""

        def ranks(kinds: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
            return tuple(statistics.median(each) for each in zip(*kinds, strict=True))

        return Work(
            statistics.median(one.step for one in steps),
            statistics.median(one.rows for one in steps),
            ranks([one.forward for one in steps]),
            ranks([one.backward for one in steps]),
            ranks([one.once for one in steps]),
        )


def terms(pipeline: Work, whole: Work, cut: Work, order: Order, parts: int) -> dict[str, float]:
    """What a step of a pipeline is made of.

    Args:
        pipeline: its step.
        whole: that of one process that takes the mini-batch whole.
        cut: that of one process that takes it in as many micro-batches.
        order: how stages take turns.
        parts: how many micro-batches.
    """
    share = (parts + 1) / (2 * parts)
    stages = [StageTimes(f / parts, b / parts) for f, b in zip(pipeline.forward, pipeline.backward, strict=True)]
    found = {
        "allowed": share * whole.step,
        "smaller": share * (cut.passes - whole.passes),
        "beside": share * (pipeline.passes - cut.passes),
        "unequal": pipeline_s(stages, order, parts) - share * pipeline.passes,
        "updates": max(pipeline.once) - share * sum(whole.once),
        "around": pipeline.step - pipeline.rows - share * (whole.step - whole.rows),
    }
    return {**found, "waits": pipeline.step - sum(found.values())}


def be(name: str, parts: int, steps: int) -> None:
    """Be a process of a run: rank 0 prints a row for each order."""
    world = mp.world()
    race, graph, (x, y) = imported(name, None)
    machine = mp.Machine.detect()
    alone = mp.search(graph, mp.Machine.preset("cpu:1"), strategy="data_parallel")
    solo = {"whole": alone, "cut": alone.with_pipeline(order="gpipe", micro_batches=parts)}
    found: dict[str, list[Work]] = {side: [] for side in (*ORDERS, *solo)}
    with ExitStack() as opened:
        sides: dict[str, mp.Trainer] = {}
        for order in ORDERS:
            plan = pipeline_plan(race, graph, machine, STAGES, order, parts)
            sides[order] = opened.enter_context(mp.Trainer(graph, plan, optimizer=OPTIMIZER))
        for side, plan in solo.items() if world.rank == 0 else ():
            made = mp.Trainer(graph, plan, optimizer=OPTIMIZER, world=World.solo(cores=1))
            sides[side] = opened.enter_context(made)
        for number in range(steps + 2):
            for side, works in found.items():
                world.control.gather(b"")
                if side not in sides:
                    continue
                begun = time.perf_counter()
                sides[side].step(x, y)
                took = 1e3 * (time.perf_counter() - begun)
                timeline = sides[side].timeline()
                if number >= 2:
                    works.append(Work.of(timeline, took, STAGES))
    if world.rank == 0:
        middle = {side: Work.middle(works) for side, works in found.items()}
        for order in ORDERS:
            made_of = terms(middle[order], middle["whole"], middle["cut"], order, parts)
            numbers = [f"{value:.1f}" for value in (middle[order].step, *(made_of[term] for term in TERMS))]
            share = f"{made_of['allowed'] / middle[order].step:.2f}"
            print("| " + " | ".join((name, order, *numbers, share)) + " |", flush=True)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
@click.option("--micro-batches", default=8, show_default=True, help="parts of a batch")
@click.option("--steps", default=15, show_default=True, help="steps whose medians are taken")
@click.option("--be", "told", hidden=True, help="be a process of a run")
def main(*, names: tuple[str, ...], micro_batches: int, steps: int, told: str) -> None:
    """Measure and print."""
    if told:
        be(told, micro_batches, steps)
        return
    print(HEAD, "|---" * (len(TERMS) + 4) + "|", sep="\n", flush=True)
    for name in names or NAMES:
        given = ["--micro-batches", micro_batches, "--steps", steps, "--be", name]
        launch = ["-m", "maniple.cli", "run", "--nodes", str(STAGES), "--cores", "1", __file__, *map(str, given)]
        subprocess.run([sys.executable, *launch], check=True)


if __name__ == "__main__":
    main()
