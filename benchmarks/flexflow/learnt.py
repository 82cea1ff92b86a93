"""Found plans against learnt placements, which give operators whole to one GPU, and where both steps go."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
from step_terms import MS, busy_ms, path_ms

from flexflow.cluster import batch_option, found, graph_for, roomy
from flexflow.table import Row, Table, json_option, write_option
from maniple.operators.graph.graph import Graph
from maniple.runtime.machine.machine import Machine
from maniple.strategies.simulation.simulation import Simulation

SEARCHED = ("reinforce", "soap")
NAMED = ("data_parallel", "expert")


def learnt_row(graph: Graph, machine: Machine, strategy: str, proposals: int) -> Row:
    """Milliseconds of a plan's step, what each GPU works of it, and what the critical path is made of."""
    simulation = Simulation(graph, machine, found(graph, machine, strategy, 0.0, proposals))
    work, (tasks, moves) = busy_ms(simulation)[0], path_ms(simulation)
    return {
        "step_ms": simulation.makespan_ns * MS,
        "gpu_least_ms": float(work.min()),
        "gpu_mean_ms": float(work.mean()),
        "gpu_most_ms": float(work.max()),
        "tasks_on_path_ms": tasks,
        "movements_on_path_ms": moves,
    }


@click.command()
@click.option("--model", "names", multiple=True, default=("nmt", "inception_v3"), help="Which models.")
@click.option("--machine", "machine_name", default="k80x4", show_default=True, help="A preset.")
@click.option("--proposals", default=2000, show_default=True, help="Of each search.")
@batch_option
@json_option
@write_option
def learnt(
    names: Sequence[str], machine_name: str, proposals: int, batch: int | None, file: Path | None, *, write: bool
) -> None:
    """Found plans against placements that a policy gradient learns, whatever memory they take."""
    table = Table(file, page=("flexflow", "flexflow.py learnt") if write else None)
    for name in names:
        machine = roomy(machine_name)
        graph = graph_for(name, machine, batch)
        for strategy in (*NAMED, *SEARCHED):
            key: Row = {"model": name, "machine": machine_name, "batch": graph.batch, "strategy": strategy}
            key |= {"proposals": proposals if strategy in SEARCHED else 0}
            table.add(key, partial(learnt_row, graph, machine, strategy, proposals))
    table.write()
