"""What plans take on two processors: the peak that a frontier says of its points, and what the system says.

    python benchmarks/frontier_truth.py                    measures 20 plans of 4 models, and writes the page's table
    python benchmarks/frontier_truth.py --print MODEL      measures those of some models, and prints their rows alone
    python benchmarks/frontier_truth.py --print --time     also times their steps: on an otherwise idle machine
    python benchmarks/frontier_truth.py --ends --time      the leanest point, the knee and the fastest, of each model's
                                                           frontier with recomputation: an idle machine
    python benchmarks/frontier_truth.py --ends --time --costs measured --machine here.toml
                                                           the same by times that were measured: of tasks, and of copies
                                                           as `maniple calibrate -o here.toml` found them

Of each model five plans for two ranks of one processor: the frontier's, then those of named strategies, then random
ones, each once. Predicted is `peak_memory_bytes`, as a frontier's points have it: the runtime's own plan of the
instances of a step, in the memory that holds most. Scratch is what bodies take besides, which a rank measures when it
loads a step, and `maniple run --memory` counts. Measured is the peak of the resident set above what it had before
(`maniple.runtime.observe.peak`), of the larger rank; both are processes that the launcher starts. Before, each trains a
small model of the same kind, so that what is imported and compiled counts for neither.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import click
import memory
import torch
from memory import CASES, Case, batch_of
from page_table import write_table

import maniple as mp
from maniple.runtime.machine.world_machine import host_machine
from maniple.strategies.frontier.pareto import rank_correlation
from maniple.strategies.simulation.simulation import Simulation
from maniple.testing import local_worlds, run_on_worlds

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "frontier.md"
BEGIN, END = "<!-- benchmarks/frontier_truth.py: begin -->", "<!-- benchmarks/frontier_truth.py: end -->"
MIB = 1 << 20
INPUTS: dict[str, memory.Inputs] = {
    "perceptron": ((128, 784), (128,)),
    "convolutions": ((16, 3, 64, 64), (16,)),
    "encoder": ((4, 128), (4, 128)),
    "recurrent": ((8, 32), (8, 32)),
}
PLANS = 5
STEPS = 3
OPTIMIZER = mp.SGD(lr=0.01, momentum=0.9)


class Measured(NamedTuple):
    """One plan.

    Args:
        name: the model's.
        strategy: whose plan.
        predicted: bytes of the instances.
        scratch: bytes that bodies take besides.
        measured: bytes that the larger rank took.
        predicted_s: simulated seconds of a step.
        measured_s: the median of what its steps took.
    """

    name: str
    strategy: str
    predicted: int
    scratch: int
    measured: int
    predicted_s: float
    measured_s: float


def case_of(name: str) -> Case:
    """A model of `memory.py`, with inputs of this benchmark's size."""
    return CASES[name]._replace(inputs=INPUTS[name])


def graph_of(case: Case, *, small: bool) -> mp.Graph:
    """The graph of a model."""
    with torch.device("meta"):
        return mp.from_torch(case.make(small), tuple(value.to("meta") for value in batch_of(case)))


def plans_of(graph: mp.Graph, machine: mp.Machine) -> list[tuple[str, mp.Plan]]:
    """Five plans: the frontier's, those of named strategies, random ones."""
    frontier = mp.search(graph, machine, strategy="pareto", objective="pareto", optimizer=OPTIMIZER)
    found = [("pareto", point.plan) for point in frontier]
    for strategy, seed in (("data_parallel", 0), ("model_parallel", 0), *(("random", seed) for seed in range(9))):
        plan = mp.search(graph, machine, strategy=strategy, seed=seed)
        if len(plan.processors_used()) == 2 and all(plan.operators != other.operators for _, other in found):
            found.append((f"random {seed}" if strategy == "random" else strategy, plan))
    return found[:PLANS]


def ends_of(graph: mp.Graph, machine: mp.Machine, costs: str) -> list[tuple[str, mp.Plan]]:
    """The leanest point, the knee and the fastest one of a frontier with recomputation; where two are one, once."""
    found = mp.search(
        *(graph, machine), strategy="pareto", objective="pareto", optimizer=OPTIMIZER, space=["recompute"], costs=costs
    )
    named = [("leanest", found.points[0].plan), ("knee", found.knee()), ("fastest", found.points[-1].plan)]
    return [(name, plan) for at, (name, plan) in enumerate(named) if plan not in [other for _, other in named[:at]]]


def side(name: str, plan: mp.Plan | None, target: Path) -> None:
    """Train as one rank of two, a small model first, and tell what the plan took."""
    torch.set_num_threads(1)
    for small in (True, False):
        case = case_of(name)
        graph = graph_of(case, small=small)
        used = plan if plan is not None and not small else mp.search(graph, mp.Machine.detect())
        batch = dict(zip((tensor.name for tensor in graph.inputs), batch_of(case), strict=True))
        seconds = []
        with mp.Trainer(graph, used, optimizer=OPTIMIZER) as trainer:
            taken = max(told["predicted"] for told in trainer.memory().values())
            for _ in range(STEPS):
                began = time.perf_counter()
                trainer.step(**batch)
                seconds.append(time.perf_counter() - began)
            most = max(told["measured"] for told in trainer.memory().values())
    if mp.world().rank == 0:
        target.write_text(json.dumps([taken, most, statistics.median(seconds)]))


def measure(name: str, machine: mp.Machine, given: str | None, *, ends: bool, costs: str) -> list[Measured]:
    """Measure the plans of a model, on a machine that was found or is given by a file."""
    graph = graph_of(case_of(name), small=False)
    rows = []
    for strategy, plan in ends_of(graph, machine, costs) if ends else plans_of(graph, machine):
        simulation = Simulation(graph, machine, plan, optimizer=OPTIMIZER)
        predicted = max(simulation.allocated_bytes() or ())
        with tempfile.TemporaryDirectory() as folder:
            file, target = Path(folder) / "plan.json", Path(folder) / "found.json"
            plan.save(file)
            own = [__file__, "--side", str(file), "--target", str(target), "--print", name]
            launch = [sys.executable, "-m", "maniple.cli", "run", "--ranks-per-node", "2", "--cores", "1"]
            launch += [] if given is None else ["--machine", given]
            subprocess.run([*launch, *own], check=True, stdout=subprocess.DEVNULL)
            taken, most, measured_s = json.loads(target.read_text())
        # A frontier says of its points what they take by the costs that it was searched by.
        said = None if plan.predicted is None else plan.predicted.step_s
        simulated_s = simulation.makespan_ns / 1e9 if said is None else said
        found = Measured(name, strategy, predicted, taken - predicted, most, simulated_s, float(measured_s))
        rows.append(found)
        print(line(found, timed=True), flush=True)
    return rows


def line(row: Measured, *, timed: bool) -> str:
    """A row of the table."""
    both = row.predicted + row.scratch
    sizes = " | ".join(f"{size / MIB:,.1f}" for size in (row.predicted, row.scratch, row.measured))
    shares = f"{row.measured / row.predicted:.3f} | {row.measured / both:.3f}"
    times = f" | {1e3 * row.predicted_s:.1f} | {1e3 * row.measured_s:.1f}" if timed else ""
    return f"| {row.name} | {row.strategy} | {sizes} | {shares}{times} |"


def head(*, timed: bool) -> str:
    """The head of the table."""
    names = ["model", "plan of", "predicted MiB", "scratch", "measured", "measured / predicted", "/ with scratch"]
    names += ["predicted ms", "measured"] if timed else []
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def summary(rows: list[Measured], *, timed: bool) -> str:
    """What is said below the table."""
    told = []
    for what, apart in (
        ("the prediction alone", [abs(row.measured / row.predicted - 1) for row in rows]),
        ("with scratch", [abs(row.measured / (row.predicted + row.scratch) - 1) for row in rows]),
    ):
        told.append(f"{what}: off by {100 * statistics.median(apart):.1f} % (median), {100 * max(apart):.1f} % at most")
    within = sum(abs(row.measured / (row.predicted + row.scratch) - 1) <= 0.05 for row in rows)
    text = f"Of {len(rows)} plans, {'; '.join(told)}; {within} within 5 % with scratch."
    if timed:
        taus = []
        for name in dict.fromkeys(row.name for row in rows):
            own = [row for row in rows if row.name == name]
            tau = rank_correlation([row.predicted_s for row in own], [row.measured_s for row in own])
            taus.append(f"{name} {'of one time' if tau is None else f'{tau:.2f}'}")
        text += f" Order of predicted and measured time (Kendall's tau): {', '.join(taus)}."
    return text


@click.command()
@click.argument("names", nargs=-1)
@click.option("--print", "alone", is_flag=True, help="print the rows and leave the page as it is")
@click.option("--time", "timed", is_flag=True, help="also time steps; the machine must be idle")
@click.option("--ends", is_flag=True, help="three points of each frontier; prints, and leaves the page as it is")
@click.option("--costs", default="analytic", help="by what the frontiers of --ends are searched")
@click.option("--machine", "given", help="the machine, as `maniple calibrate` found it; else one that nobody measured")
@click.option("--side", "plan_file", hidden=True, help="be one rank, under the plan of this file")
@click.option("--target", hidden=True, help="where that tells what it found")
def main(
    names: tuple[str, ...],
    costs: str,
    given: str | None,
    plan_file: str | None,
    target: str | None,
    *,
    alone: bool,
    timed: bool,
    ends: bool,
) -> None:
    """Measure, and write the table between its marks on the page."""
    if plan_file is not None and target is not None:
        side(names[0], mp.Plan.load(plan_file), Path(target))
        return
    machine = run_on_worlds(local_worlds(2), host_machine)[0] if given is None else mp.Machine.load(given)
    rows = [row for name in names or INPUTS for row in measure(name, machine, given, ends=ends, costs=costs)]
    table = "\n".join([head(timed=timed), *(line(row, timed=timed) for row in rows), "", summary(rows, timed=timed)])
    print(table)
    if not alone and not ends and not names:
        write_table(PAGE, BEGIN, END, table)


if __name__ == "__main__":
    main()
