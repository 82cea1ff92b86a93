"""Figure 3: seconds until a search is as good as a plain chain of published proposals is in the end.

The plain chain (SysML 2019, section 6) begins at data parallelism. A proposal gives one operator another of its equal
splits, on another range of processors; Metropolis and Hastings decide. It makes all of its proposals, or none: where
at the pace of the first seconds they would take too long, the row says how long, and times nothing. A row whose chain
accepted nothing times nothing either: what it ends with is where it began.
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


PACE_S = 10.0
"""How long a chain runs before it is said how long it will."""


class Plain(NamedTuple):
    """What a plain chain came to.

    Args:
        cost: seconds of a step under the fastest plan.
        accepted: how many proposals were.
        whole: whether it made all of its proposals.
        seconds: they took, or would take.
    """

    cost: float
    accepted: int
    whole: bool
    seconds: float


def redrawn(own: OperatorSpace, chance: Random) -> Choice:
    """Draw one of the published choices of an operator: split, start and stride."""
    degrees = chance.choice(equal_splits(own.factors, own.processors))
    stride = chance.choice(own.strides(math.prod(degrees)))
    return Choice(degrees, 1, chance.randrange(own.processors), stride)


def plain_chain(
    graph: Graph, machine: Machine, proposals: int, longest: float, *, seed: int = 0, pace: float = PACE_S
) -> Plain:
    """Run the published search for so many proposals, unless that would take more than so many seconds."""
    compile_all()
    space = Space.of(graph, len(machine.processors))
    plan = DataParallel().plan(Problem(graph, machine))
    start = choices_of(space, plan)
    if start is None:
        raise click.ClickException(f"{graph.name}: the data-parallel plan is none of the space")
    evaluation = Evaluation(Simulation(graph, machine, plan), space, start)
    scale = best = cost = evaluation.cost
    chance, accepted, paced = Random(seed), 0, False
    begun = time.perf_counter()
    for made in range(proposals):
        elapsed = time.perf_counter() - begun
        if not paced and made and elapsed > pace:
            paced, whole = True, elapsed / made * proposals
            if whole > longest:
                return Plain(best, accepted, whole=False, seconds=whole)
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
        accepted += 1
        cost, best = found, min(best, found)
    return Plain(best, accepted, whole=True, seconds=time.perf_counter() - begun)


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
    about: Row = {"plain_whole": plain.whole, "plain_s": plain.seconds, "plain_accepted": plain.accepted}
    if not plain.whole or not plain.accepted:
        return about
    found = [seconds_to(graph, machine, plain.cost, seed, budget) for seed in range(seeds)]
    middle, count = statistics.median(found), len(machine.processors)
    published = PUBLISHED_S[count][MODELS.index(graph.name)] if count in PUBLISHED_S and graph.name in MODELS else 0.0
    return about | {
        "plain_ms": plain.cost * 1e3,
        "reached": sum(map(math.isfinite, found)),
        "median_s": middle if math.isfinite(middle) else None,
        "allowed_s": max(1.0, published / 50),
    }


@click.command()
@model_option
@click.option("--devices", multiple=True, type=int, default=(4, 16, 64), help="Of k80; may be given several times.")
@click.option("--proposals", default=250_000, show_default=True, help="Of the plain chain.")
@click.option("--longest", default=600.0, show_default=True, help="Seconds; a plain chain that takes more is not run.")
@click.option("--seeds", default=5, show_default=True, help="Of the search, one after the other.")
@batch_option
@budget_option
@json_option
def search_time(
    names: Sequence[str],
    devices: Sequence[int],
    proposals: int,
    longest: float,
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
            plain = plain_chain(graph, machine, proposals, longest)
            return search_time_row(graph, machine, plain, seeds, budget)

        key: Row = {"model": name, "devices": count, "batch": graph.batch, "proposals": proposals}
        table.add(key | {"longest": longest, "seeds": seeds, "budget": budget}, row)
