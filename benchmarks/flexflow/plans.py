"""Figure 2: found plans against named ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path

import click

from flexflow.cluster import (
    batch_option,
    budget_option,
    effort,
    found,
    graph_for,
    model_option,
    predicted,
    proposals_option,
    roomy,
)
from flexflow.table import Row, Table, json_option, write_option
from maniple.operators.graph.graph import Graph
from maniple.runtime.machine.machine import Machine

USUAL = ("data_parallel", "expert")


def plans_row(graph: Graph, machine: Machine, searches: Sequence[str], budget: float, proposals: int | None) -> Row:
    """Milliseconds and gigabytes of the plans of some searches and of the usual ones, and how much faster plans are."""
    plans = {
        strategy: predicted(graph, machine, found(graph, machine, strategy, budget, proposals))
        for strategy in (*USUAL, *searches)
    }
    usual = min(plans[strategy].step_ns for strategy in USUAL)
    row: Row = {f"{strategy}_ms": one.step_ns / 1e6 for strategy, one in plans.items()}
    row |= {f"{strategy}_speed_up": usual / plans[strategy].step_ns for strategy in searches}
    last = searches[-1]
    row |= {f"{last}_over_{one}": plans[one].step_ns / plans[last].step_ns for one in searches if one != last}
    return row | {f"{strategy}_gb": one.bytes / 1e9 for strategy, one in plans.items()}


@click.command()
@model_option
@click.option(
    "--strategy",
    "searches",
    multiple=True,
    default=("optcnn", "soap"),
    help="Which searches; the last is compared with the others.",
)
@click.option("--machine", "machines", multiple=True, default=("k80x64",), show_default=True, help="Presets.")
@batch_option
@budget_option
@proposals_option
@json_option
@write_option
def plans(
    names: Sequence[str],
    searches: Sequence[str],
    machines: Sequence[str],
    batch: int | None,
    budget: float,
    proposals: int | None,
    file: Path | None,
    *,
    write: bool,
) -> None:
    """Figure 2: found plans against data parallelism and the expert's plan, whatever memory they take."""
    table = Table(file, page=("flexflow", "flexflow.py plans") if write else None)
    for machine_name, name in product(machines, names):
        machine = roomy(machine_name)
        # AlexNet has its published batch, whatever the others have.
        graph = graph_for(name, machine, batch and (256 if name == "alexnet" else batch))
        key: Row = {"model": name, "machine": machine_name, "batch": graph.batch, "searches": " ".join(searches)}
        key |= effort(budget, proposals)
        table.add(key, partial(plans_row, graph, machine, searches, budget, proposals))
    table.write()
