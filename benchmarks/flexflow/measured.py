"""Figure 5: plans run here, on the processors that this was launched on."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click
from batch import batch_of

import maniple as mp
from flexflow.table import Row, Table, json_option, of_contents
from maniple.costs import NamedCosts
from maniple.models import model
from maniple.operators.graph.graph import Graph
from maniple.operators.plan.plan import Plan
from maniple.runtime.control.world import current
from maniple.runtime.machine.machine import Machine
from maniple.search_loop import search

SIZES: dict[str, dict[str, int]] = {
    "vgg16": {"batch": 32, "image": 32, "classes": 10},
    "gpt": {"batch": 8, "words": 1000, "steps": 64, "width": 128, "heads": 4, "layers": 4},
    "rnnlm": {"batch": 16, "words": 1000, "width": 256, "steps": 16, "chunk": 4},
    "mlp": {"batch": 64},
    "resnet18": {"batch": 16, "image": 32, "classes": 10},
}
"""Sizes of which a step takes about a tenth of a second on a core."""
RIVALS = ("data_parallel", "model_parallel", "expert", "spatial", "antichain", "bapipe", "optcnn")
FOUND = "auto"
WARM_UP = 2


def distinct(plans: dict[str, Plan]) -> dict[str, str]:
    """For each strategy the first whose plan places every operator and weight as its own does."""
    first: dict[object, str] = {}
    return {name: first.setdefault((plan.operators, plan.weights), name) for name, plan in plans.items()}


def step_seconds(graph: Graph, plans: dict[str, Plan], rounds: int, steps: int) -> dict[str, float]:
    """Train under some plans in turn, so many steps of each in a round; give the median seconds of a step."""
    batch = batch_of(graph)
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    with ExitStack() as stack:
        trainers = {
            name: stack.enter_context(mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.01, momentum=0.9)))
            for name, plan in plans.items()
        }
        for trainer in trainers.values():
            for _ in range(WARM_UP):
                trainer.step(**batch)
        for _ in range(rounds):
            for name, trainer in trainers.items():
                # The first step of a turn finds the caches full of another plan's tensors.
                trainer.step(**batch)
                for _ in range(steps):
                    begun = time.perf_counter()
                    trainer.step(**batch)
                    seconds[name].append(time.perf_counter() - begun)
    return {name: statistics.median(times) for name, times in seconds.items()}


def measured_row(graph: Graph, machine: Machine, budget: float, costs: str, rounds: int, steps: int) -> Row:
    """What a step of the found plan takes, over the fastest of the named ones; a plan that is another's is not run.

    All are searched with the same costs, measured or loaded once; those of the plans that come near the found one are
    measured again in its search.
    """
    tasks = NamedCosts(costs, graph, machine)
    plans = {name: search(graph, machine, strategy=name, budget=budget, costs=tasks) for name in (*RIVALS, FOUND)}
    same = distinct(plans)
    seconds = step_seconds(graph, {name: plans[name] for name in dict.fromkeys(same.values())}, rounds, steps)
    fastest = min(RIVALS, key=lambda name: seconds[same[name]])
    row: Row = {
        "found_ms": 1e3 * seconds[same[FOUND]],
        "predicted_ms": 1e3 * (plans[FOUND].predicted.step_s or 0.0),
        "found_by": dict(dict(plans[FOUND].explanation)[""])["found by"],
        "fastest": fastest,
        "found_over_fastest": seconds[same[FOUND]] / seconds[same[fastest]],
    }
    return row | {name: 1e3 * seconds[name] if same[name] == name else same[name] for name in plans}


@click.command()
@click.option("--model", "names", multiple=True, default=tuple(SIZES))
@click.option("--machine", "machine_file", type=click.Path(exists=True), help="What `maniple calibrate -o` wrote.")
@click.option("--steps", default=5, show_default=True, help="Of a plan in a round.")
@click.option("--rounds", default=5, show_default=True, help="Through all plans of a model.")
@click.option("--budget", default=20.0, show_default=True, help="Seconds of a search.")
@click.option("--costs", default="analytic", show_default=True, help="Of all searches: analytic, measured or a file.")
@json_option
def measured(
    names: Sequence[str],
    machine_file: str | None,
    steps: int,
    rounds: int,
    budget: float,
    costs: str,
    file: Path | None,
) -> None:
    """Figure 5: the found plan and every named one, run in turn; of equal plans one, named in place of a time."""
    machine = Machine.detect() if machine_file is None else Machine.load(machine_file)
    table = Table(file, current())
    for name in names:
        graph = model(name, **SIZES[name])
        key: Row = {
            "model": name,
            "machine": machine.name if machine_file is None else of_contents(machine_file),
            "budget": budget,
            "costs": of_contents(costs) if Path(costs).is_file() else costs,
            "rounds": rounds,
            "steps": steps,
        }
        table.add(key, lambda graph=graph: measured_row(graph, machine, budget, costs, rounds, steps))
