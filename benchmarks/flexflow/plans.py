"""Figure 2: found plans against named ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from flexflow.cluster import batch_option, budget_option, graph_for, machine_option, model_option, predicted, roomy
from flexflow.table import Row, Table, json_option
from maniple.operators.graph.graph import Graph
from maniple.runtime.machine.machine import Machine
from maniple.search_loop import search

USUAL = ("data_parallel", "expert")


def plans_row(graph: Graph, machine: Machine, searches: Sequence[str], budget: float) -> Row:
    """Milliseconds and gigabytes of the plans of some searches and of the usual ones, and how much faster plans are."""
    found = {
        strategy: predicted(graph, machine, search(graph, machine, strategy=strategy, budget=budget))
        for strategy in (*USUAL, *searches)
    }
    usual = min(found[strategy].step_ns for strategy in USUAL)
    row: Row = {f"{strategy}_ms": one.step_ns / 1e6 for strategy, one in found.items()}
    row |= {f"{strategy}_speed_up": usual / found[strategy].step_ns for strategy in searches}
    last = searches[-1]
    row |= {f"{last}_over_{one}": found[one].step_ns / found[last].step_ns for one in searches if one != last}
    return row | {f"{strategy}_gb": one.bytes / 1e9 for strategy, one in found.items()}


@click.command()
@model_option
@click.option(
    "--strategy",
    "searches",
    multiple=True,
    default=("optcnn", "soap"),
    help="Which searches; the last is compared with the others.",
)
@machine_option
@batch_option
@budget_option
@json_option
def plans(
    names: Sequence[str],
    searches: Sequence[str],
    machine_name: str,
    batch: int | None,
    budget: float,
    file: Path | None,
) -> None:
    """Figure 2: found plans against data parallelism and the expert's plan, whatever memory they take."""
    machine, table = roomy(machine_name), Table(file)
    for name in names:
        graph = graph_for(name, machine, batch)
        key: Row = {
            "model": name,
            "machine": machine_name,
            "batch": graph.batch,
            "budget": budget,
            "searches": " ".join(searches),
        }
        table.add(key, lambda graph=graph: plans_row(graph, machine, searches, budget))
