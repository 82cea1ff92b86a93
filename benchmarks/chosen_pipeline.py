"""Pipelines that a search chose for two processes of one host, raced beside the best plan without one.

    python benchmarks/chosen_pipeline.py              all workloads; prints the table of docs/explanation/pipelines.md
    python benchmarks/chosen_pipeline.py roomy        one

Each workload is a stack of LSTM layers, which are split by their samples alone: only stages share out their weights.
`auto` searches by what tasks take here, those of micro-batches among them, on two processes of one core. *Tight* is
launched with `--memory`, so a process has no room for all weights, their gradients and their momentum; the others have
what the computer has. Raced are what `auto` chooses and the fastest other plan that fits, as it is simulated: without a
pipeline where one is chosen, else the fastest pipeline, so that a row tells what choosing it would have cost. Plans
without a pipeline are those of every strategy that `auto` tries, one processor alone, the named plans, these with their
weights spread (ZeRO, stage 3), and the stages of the pipelines that were found with the mini-batch whole.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import click
import torch
from pipeline_search import layers
from training import torch_modes
from training.torch_modes import RATE

import maniple as mp
from maniple.costs import NamedCosts
from maniple.found_plans import Found, find_on_rank_0
from maniple.operators.plan.plan import Predicted
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.search.memory_fit import excess
from maniple.strategies.segmentation.finalists import micro_batch_counts, rivals
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap.auto import Auto

if TYPE_CHECKING:
    from training.torch_modes import Step

OPTIMIZER = mp.SGD(lr=RATE, momentum=0.9)
HEAD = "| workload | room of a process | plan | predicted ms | ms | of the other |\n|---|---|---|---|---|---|"


class Workload(NamedTuple):
    """A stack of LSTM layers.

    Args:
        count: layers.
        batch: samples of a step.
        width: features.
        steps: places of a sample.
        memory: what a process may hold, as the launcher is told; nothing: what there is.
    """

    count: int
    batch: int
    width: int
    steps: int
    memory: str = ""

    def graph(self) -> mp.Graph:
        """The model with its loss."""
        return layers(self.count, self.batch, self.width, self.steps)


WORKLOADS = {
    "few": Workload(4, 16, 1024, 8),
    "roomy": Workload(4, 256, 1024, 8),
    "tight": Workload(4, 256, 1024, 8, "420MiB"),
}


def told(plan: mp.Plan) -> str:
    """What a table calls a plan."""
    if plan.pipeline is None:
        return plan.strategy
    return f"{plan.pipeline.order}, {len(plan.stages)} stages, {plan.pipeline.micro_batches} micro-batches"


def found_here(graph: mp.Graph, machine: mp.Machine, search_s: float) -> Found:
    """What `auto` chooses by what tasks take here, and the fastest plan of the other kind, as both are simulated."""
    asked = Problem(graph, machine, optimizer=OPTIMIZER)
    costs = NamedCosts("measured", graph, machine, micro_batch_counts(asked)).survey()
    problem = replace(asked, costs=costs)
    auto, begun = Auto(), time.monotonic()

    def within() -> bool:
        return time.monotonic() - begun < search_s

    state = auto.init(problem)
    # What looks for pipelines has its turn after the trials of the searches, and is waited for.
    while any(not each.ended and (not each.strategy.needs_budget or within()) for each in state.entrants):
        state = auto.step(state)
    best = auto.result(state)
    best = replace(best, strategy=str(dict(dict(best.explanation)[""])["found by"]))
    found = [best, *auto.alternatives(state)]
    named = [replace(rival.plan, strategy=rival.name) for rival in rivals(problem, [])]
    found += named
    found += [replace(plan.with_zero(3, graph, machine), strategy=f"{plan.strategy}, ZeRO 3") for plan in named]
    found += [
        replace(plan, strategy="the same stages, the mini-batch whole", pipeline=None)
        for plan in found
        if plan.pipeline is not None
    ]
    known: list[mp.Plan] = []
    for plan in found:
        simulation = Simulation(graph, machine, plan, costs, OPTIMIZER)
        if excess(simulation)[0] <= 0:
            known.append(replace(plan, explanation=(), predicted=Predicted(simulation.makespan_ns / 1e9)))
    chosen, *rest = known
    others = [plan for plan in rest if (plan.pipeline is None) != (chosen.pipeline is None)]
    others.sort(key=lambda plan: plan.predicted.step_s or 0.0)
    return Found(chosen, tuple(others[:1]))


def be(name: str, rounds: int, seconds: float, search_s: float) -> list[tuple[str, float, list[float]]]:
    """Be a process of a race: of the plan that is chosen, and of the other, what a step should take and took."""
    torch.set_num_threads(1)
    world, workload = mp.world(), WORKLOADS[name]
    graph, machine = workload.graph(), mp.Machine.detect()
    found = find_on_rank_0("chosen_pipeline.py", lambda: found_here(graph, machine, search_s), "time")
    plans = {told(plan): plan for plan in (cast("mp.Plan", found.answer), *found.racers)}
    shape = workload.batch, workload.steps, workload.width
    x, y = (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))

    def meet(number: int) -> int:
        return int(world.control.gather(str(number).encode())[0])

    with ExitStack() as trainers:
        sides: dict[str, Step] = {}
        for side, plan in plans.items():
            trainer = trainers.enter_context(mp.Trainer(graph, plan, optimizer=OPTIMIZER))
            sides[side] = lambda trainer=trainer: trainer.step(x, y)  # type: ignore[misc]
        times = torch_modes.race_of(sides, rounds, seconds, meet)
    return [(side, 1e3 * (plan.predicted.step_s or 0.0), times[side]) for side, plan in plans.items()]


def rows(name: str, raced: list[tuple[str, float, list[float]]]) -> list[str]:
    """A row for the plan that was chosen, and one for the other: each with how many times as fast it is."""
    workload, lines = WORKLOADS[name], []
    for (side, predicted, times), (_, _, others) in zip(raced, reversed(raced), strict=True):
        ratio = statistics.median(b / a for a, b in zip(times, others, strict=True))
        size = f"{workload.count} LSTM layers, {workload.width} wide, {workload.batch} x {workload.steps}"
        plan = f"{side}, chosen" if not lines else side
        took = f"{predicted:.1f}", f"{statistics.median(times):.1f}"
        beside = f"{ratio:.2f}" if len(raced) > 1 else "no other"
        lines.append("| " + " | ".join((size, workload.memory or "all", plan, *took, beside)) + " |")
    return lines


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*WORKLOADS]))
@click.option("--rounds", default=5, show_default=True, help="figures are medians over them")
@click.option("--seconds", default=1.0, show_default=True, help="how long a turn takes at least")
@click.option("--search-seconds", "search_s", default=20.0, show_default=True, help="how long a search takes at most")
@click.option("--be", "own", hidden=True, help="be a process of a race")
@click.option("--target", hidden=True, help="where that tells what it found")
def main(*, names: tuple[str, ...], rounds: int, seconds: float, search_s: float, own: str, target: str) -> None:
    """Search, race and print."""
    if own:
        found = be(own, rounds, seconds, search_s)
        if mp.world().rank == 0:
            Path(target).write_text(json.dumps(found))
        return
    print(HEAD, flush=True)
    for name in names or WORKLOADS:
        memory = WORKLOADS[name].memory
        launch = ["-m", "maniple.cli", "run", "--nodes", "2", "--cores", "1", *(["--memory", memory] if memory else [])]
        options = ["--rounds", rounds, "--seconds", seconds, "--search-seconds", search_s]
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "found.json"
            given = [__file__, *map(str, options), "--be", name, "--target", str(result)]
            subprocess.run([sys.executable, *launch, *given], check=True, stdout=subprocess.DEVNULL)
            print("\n".join(rows(name, json.loads(result.read_text()))), flush=True)


if __name__ == "__main__":
    main()
