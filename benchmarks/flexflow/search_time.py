"""Figure 3: seconds until a search is as good as a plain chain of published proposals is in the end.

The plain chain (SysML 2019, section 6) begins at data parallelism. A proposal gives one operator another of its equal
splits, on another range of processors; Metropolis and Hastings decide.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import NamedTuple

import click

from flexflow.cluster import MODELS, batch_option, budget_option, graph_for, model_option
from flexflow.table import Row, Table, json_option
from maniple.operators.graph.graph import Graph
from maniple.runtime.machine.machine import Machine
from maniple.search_loop import search
from maniple.strategies.interface.equal_split import equal_splits
from maniple.strategies.interface.space import Choice, OperatorSpace, Space
from maniple.strategies.interface.strategy import Problem, Progress
from maniple.strategies.named.data_parallel import DataParallel
from maniple.strategies.simulation.compilation import compile_all
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap.evaluation import Evaluation
from maniple.strategies.soap.seeding import choices_of

# Seconds with delta simulation, by devices (the paper's table 4 as it is remembered; two of its entries are verified).
PUBLISHED_S = {
    4: (0.04, 0.4, 4.1, 7.5, 9.2, 16.0),
    16: (0.48, 7.3, 77.0, 170.0, 121.0, 328.0),
    64: (5.9, 158.0, 1278.0, 1489.0, 969.0, 2190.0),
}

TEMPERATURE = 0.003
"""Of the plain chain, in units of the first plan's step time."""


class Plain(NamedTuple):
    """What a plain chain came to.

    Args:
        cost: seconds of a step under the fastest plan.
        proposals: how many were made.
        seconds: they took.
    """

    cost: float
    proposals: int
    seconds: float


def redrawn(own: OperatorSpace, chance: Random) -> Choice:
    """Draw one of the published choices of an operator: split, start and stride."""
    degrees = chance.choice(equal_splits(own.factors, own.processors))
    stride = chance.choice(own.strides(math.prod(degrees)))
    return Choice(degrees, 1, chance.randrange(own.processors), stride)


def plain_chain(graph: Graph, machine: Machine, proposals: int, budget: float, seed: int = 0) -> Plain:
    """Run the published search, for so many proposals or seconds."""
    compile_all()
    begun = time.perf_counter()
    space = Space.of(graph, len(machine.processors))
    plan = DataParallel().plan(Problem(graph, machine))
    start = choices_of(space, plan)
    if start is None:
        raise click.ClickException(f"{graph.name}: the data-parallel plan is none of the space")
    evaluation = Evaluation(Simulation(graph, machine, plan), space, start)
    scale = best = cost = evaluation.cost
    chance, made = Random(seed), 0
    while made < proposals and time.perf_counter() - begun < budget:
        made += 1
        operator = chance.randrange(len(start))
        own, present = space.operators[operator], evaluation.choices[operator]
        drawn = redrawn(own, chance)
        # A choice of fewer strides is drawn the more often.
        ratio = math.log(len(own.strides(drawn.tasks)) / len(own.strides(present.tasks)))
        limit = cost + TEMPERATURE * scale * (ratio + chance.expovariate(1.0))
        found = evaluation.evaluate([(operator, drawn)], limit)
        if found > limit:
            evaluation.reject()
            continue
        evaluation.accept()
        cost, best = found, min(best, found)
    return Plain(best, made, time.perf_counter() - begun)


def seconds_to(graph: Graph, machine: Machine, cost: float, seed: int, budget: float) -> float:
    """Give the seconds until a search on one core, like the plain chain, has a plan that costs no more.

    Infinite where the budget ends first.
    """
    reached = math.inf

    def watch(progress: Progress, elapsed_s: float) -> None:
        nonlocal reached
        if progress.best_s is not None and progress.best_s <= cost and math.isinf(reached):
            reached = elapsed_s
            raise KeyboardInterrupt  # the driver keeps the best plan

    search(graph, machine, strategy="soap", budget=budget, seed=seed, cores=1, watch=watch)
    return reached


def search_time_row(graph: Graph, machine: Machine, plain: Plain, seeds: int, budget: float) -> Row:
    """The columns of a model on a cluster."""
    found = [seconds_to(graph, machine, plain.cost, seed, budget) for seed in range(seeds)]
    middle, count = statistics.median(found), len(machine.processors)
    published = PUBLISHED_S[count][MODELS.index(graph.name)] if count in PUBLISHED_S and graph.name in MODELS else 0.0
    return {
        "plain_ms": plain.cost * 1e3,
        "plain_proposals": plain.proposals,
        "plain_s": plain.seconds,
        "reached": sum(map(math.isfinite, found)),
        "median_s": middle if math.isfinite(middle) else None,
        "allowed_s": max(1.0, published / 50),
    }


@click.command()
@model_option
@click.option("--devices", multiple=True, type=int, default=(4, 16, 64), help="Of k80; may be given several times.")
@click.option("--proposals", default=250_000, show_default=True, help="Of the plain chain.")
@click.option("--plain-budget", default=60.0, show_default=True, help="Seconds of the plain chain.")
@click.option("--seeds", default=5, show_default=True, help="Of the search, one after the other.")
@batch_option
@budget_option
@json_option
def search_time(
    names: Sequence[str],
    devices: Sequence[int],
    proposals: int,
    plain_budget: float,
    seeds: int,
    batch: int | None,
    budget: float,
    file: Path | None,
) -> None:
    """Figure 3: the seconds until a search is as good as a plain chain in the end; run it twice for a warm cache."""
    table = Table(file)
    for name, count in product(names, devices):
        machine = Machine.preset(f"k80x{count}")
        graph = graph_for(name, machine, batch)

        def row(graph: Graph = graph, machine: Machine = machine) -> Row:
            plain = plain_chain(graph, machine, proposals, plain_budget)
            return search_time_row(graph, machine, plain, seeds, budget)

        key: Row = {"model": name, "devices": count, "batch": graph.batch, "proposals": proposals}
        table.add(key | {"plain_budget": plain_budget, "seeds": seeds, "budget": budget}, row)
