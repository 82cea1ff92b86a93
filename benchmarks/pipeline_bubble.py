"""The bubble of a pipeline as a share of its step, predicted and measured, and what 8 micro-batches cost to lower.

    python benchmarks/pipeline_bubble.py                 the bubble of two stages on two processes of one core each
    python benchmarks/pipeline_bubble.py --bodies 1      and, of bodies that take 1 ms of a step, what each takes
    python benchmarks/pipeline_bubble.py --lowering      what lowering a step takes with 1 and with 8 micro-batches

Models and stages are those of benchmarks/pipelining.py. A step lasts from the first task to the last; what of that the
two processors do not compute is the bubble, in the simulator's timeline and in that of a step that ran. Tasks are
simulated at what they take here (`--costs analytic` for a roofline). Of balanced stages a flush leaves a share of
(p - 1) / (m + p - 1). Measured is the median over some steps after two; it needs an idle computer.

Lowering is told in calls of Python functions, which other load does not disturb, and in seconds of this thread.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import click
from pipelining import pipeline_plan
from training.models import RACES, Race

import maniple as mp
from maniple.costs import costs_of
from maniple.operators.lowering.expansion import Expansion
from maniple.operators.lowering.step_program import FragmentCache, lower
from maniple.operators.lowering.weight import weights
from maniple.runtime.program.region_table import RegionTable
from maniple.strategies.simulation.simulation import Simulation

if TYPE_CHECKING:
    from torch import Tensor

    from maniple.runtime.observe.timeline import Timeline
    from maniple.strategies.pipeline.stage_costs import Order

STAGES = 2
OPTIMIZER = mp.SGD(lr=0.01, momentum=0.9)
NAMES = ("cnn", "mlp", "lstm", "gpt")
ORDERS: tuple[Order, ...] = ("gpipe", "1f1b")
Body = tuple[int, str]
"""A rank, and what it runs."""


def bubble(timeline: Timeline) -> float:
    """The share of a step in which processors compute nothing."""
    spans = [span for span in timeline.spans if span.category == "task"]
    begin, end = min(span.start_ns for span in spans), max(span.end_ns for span in spans)
    lanes = {(span.rank, span.lane) for span in spans}
    return 1 - sum(span.end_ns - span.start_ns for span in spans) / (len(lanes) * (end - begin))


def busy_ns(timeline: Timeline) -> Counter[Body]:
    """What each body takes of a step, all its micro-batches together."""
    found = Counter[Body]()
    for span in timeline.spans:
        if span.category == "task":
            found[span.rank, re.sub(r"#\d+|\[.*", "", span.name)] += span.end_ns - span.start_ns
    return found


def imported(name: str, batch: int | None) -> tuple[Race, mp.Graph, tuple[Tensor, Tensor]]:
    """A raced model as a graph, and its batch."""
    race = RACES[name]
    data = race.data(batch or race.batch)
    return race, mp.from_torch(race.module(), data), data


def simulated(graph: mp.Graph, machine: mp.Machine, plan: mp.Plan, costs: str) -> Timeline:
    """The timeline of a step in the simulator, at what its tasks take here in the middle of some passes."""
    with costs_of(costs, graph, machine) as model:
        if model is not None and model.measuring:
            Simulation(graph, machine, plan, model, OPTIMIZER)
            model.settle()
        return Simulation(graph, machine, plan, model, OPTIMIZER).timeline()


def be(name: str, batch: int | None, parts: int, steps: int, costs: str, least_ms: float | None) -> None:
    """Be a process of a run: rank 0 prints a row for each order, and for each body if that is asked for."""
    world = mp.world()
    race, graph, (x, y) = imported(name, batch)
    machine = mp.Machine.detect()
    for order in ORDERS:
        plan = pipeline_plan(race, graph, machine, STAGES, order, parts)
        measured, taken = list[float](), list[Counter[Body]]()
        with mp.Trainer(graph, plan, optimizer=OPTIMIZER) as trainer:
            for number in range(steps + 2):
                trainer.step(x, y)
                if number >= 2:
                    timeline = trainer.timeline()
                    measured.append(bubble(timeline))
                    taken.append(busy_ns(timeline))
        if world.rank == 0:
            timeline = simulated(graph, machine, plan, costs)
            shares = bubble(timeline), statistics.median(measured), (STAGES - 1) / (parts + STAGES - 1)
            cells = [name, parts, order, *(f"{100 * share:.1f}" for share in shares)]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
            if least_ms is not None:
                print_bodies(busy_ns(timeline), taken, least_ms)
        world.control.gather(b"")


def print_bodies(predicted: Counter[Body], taken: list[Counter[Body]], least_ms: float) -> None:
    """Print what bodies take, predicted and in the middle of some steps, and of each rank in all."""
    ran = Counter({body: round(statistics.median(each[body] for each in taken)) for each in taken for body in each})
    for found in (predicted, ran):
        for (rank, name), took in list(found.items()):
            found[rank, "in all"] += took if name != "in all" else 0
    for rank, name in sorted({*predicted, *ran}):
        both = predicted[rank, name] / 1e6, ran[rank, name] / 1e6
        if max(both) >= least_ms:
            print(f"    {rank}  {name:48} {both[0]:9.2f} ms predicted {both[1]:9.2f} ran", flush=True)


def lowering(name: str, batch: int | None, parts: int) -> tuple[int, int, float]:
    """Rows, calls of Python functions, and seconds of this thread of lowering a step, with nothing known before."""
    race, graph, _ = imported(name, batch)
    machine = mp.Machine.cpu(1, ranks=STAGES)
    plan, rows, calls, seconds = pipeline_plan(race, graph, machine, STAGES, "1f1b", parts), 0, [0], 0.0
    for counted in (None, True, False):  # what is compiled or imported once is first
        table = RegionTable()
        expansion = Expansion(graph, plan, machine, weights(graph, plan, machine, OPTIMIZER, table), table)
        sys.setprofile((lambda _, event, __: calls.__setitem__(0, calls[0] + (event == "call"))) if counted else None)
        begun = time.thread_time()
        rows = len(lower(expansion.training_step(OPTIMIZER), FragmentCache(machine)))
        seconds = time.thread_time() - begun
        sys.setprofile(None)
    return rows, calls[0], seconds


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
@click.option("--batch", type=int, help="samples of a step  [default: the race's]")
@click.option("--micro-batches", default=8, show_default=True, help="parts of a batch")
@click.option("--steps", default=20, show_default=True, help="steps whose median is taken")
@click.option("--costs", default="measured", show_default=True, help="what tasks take in the simulation")
@click.option("--bodies", "least_ms", type=float, help="print what bodies take that take so many ms of a step")
@click.option("--lowering", "lowered", is_flag=True, help="count what lowering takes, and run nothing")
@click.option("--be", "told", hidden=True, help="be a process of a run")
def main(
    *,
    names: tuple[str, ...],
    batch: int | None,
    micro_batches: int,
    steps: int,
    costs: str,
    least_ms: float | None,
    lowered: bool,
    told: str,
) -> None:
    """Measure and print."""
    if told:
        be(told, batch, micro_batches, steps, costs, least_ms)
        return
    if lowered:
        head = "| model | rows, 1 | rows, m | calls, 1 | calls, m | calls, m / 1 | seconds, m / 1 |"
        print(head, "|---" * 7 + "|", sep="\n")
    else:
        print("| model | micro-batches | order | predicted % | measured % | balanced % |", "|---" * 6 + "|", sep="\n")
    for name in names or NAMES:
        if lowered:
            (rows, calls, seconds), (more, others, longer) = (lowering(name, batch, m) for m in (1, micro_batches))
            cells = (name, rows, more, calls, others, f"{others / calls:.2f}", f"{longer / seconds:.2f}")
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
            continue
        given = ["--micro-batches", micro_batches, "--steps", steps, "--costs", costs, "--be", name]
        given += ["--batch", batch] if batch else []
        given += [] if least_ms is None else ["--bodies", least_ms]
        launch = ["-m", "maniple.cli", "run", "--nodes", str(STAGES), "--cores", "1", __file__, *map(str, given)]
        subprocess.run([sys.executable, *launch], check=True)


if __name__ == "__main__":
    main()
