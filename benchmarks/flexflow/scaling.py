"""Figure 7: step time and efficiency on 1 to 64 GPUs, and a day of training with the search's own time counted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
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

DAY_S = 86_400.0
NAMED = ("data_parallel", "expert")


def scaling_row(
    graph: Graph, machine: Machine, budget: float, proposals: int | None, charge: float, alone: float | None
) -> Row:
    """Milliseconds of a step, and samples per second and GPU over those of one GPU.

    Args:
        graph: with the batch of all GPUs.
        machine: the GPUs.
        budget: seconds of the search.
        proposals: how many it makes instead.
        charge: seconds that are counted for it, of a day.
        alone: samples per second of one GPU; None: this is one.
    """
    begun = time.perf_counter()
    plan = found(graph, machine, "soap", budget, proposals)
    within = time.perf_counter() - begun <= charge
    steps = {name: predicted(graph, machine, found(graph, machine, name, budget, proposals)).step_ns for name in NAMED}
    steps["soap"] = predicted(graph, machine, plan).step_ns
    rates = {name: graph.batch / step * 1e9 for name, step in steps.items()}
    best, mine = max(rates[name] for name in NAMED), rates["soap"]
    single = (alone or mine) * len(machine.processors)
    row: Row = {f"{name}_ms": step / 1e6 for name, step in steps.items()}
    row |= {f"{name}_efficiency": rate / single for name, rate in rates.items()}
    return row | {
        "samples_per_s": mine,
        "over_a_day": mine * (1 - charge / DAY_S),
        "pays_after_s": charge * mine / (mine - best) if mine > best else None,
        "search_within_charge": within,
    }


@click.command()
@model_option
@click.option("--kind", default="k80", show_default=True, help="The kind of GPU.")
@click.option("--gpus", multiple=True, type=int, default=(1, 2, 4, 8, 16, 32, 64), help="How many; the first is alone.")
@click.option("--charge", default=600.0, show_default=True, help="Seconds counted for each search, of a day.")
@batch_option
@budget_option
@proposals_option
@json_option
@write_option
def scaling(
    names: Sequence[str],
    kind: str,
    gpus: Sequence[int],
    charge: float,
    batch: int | None,
    budget: float,
    proposals: int | None,
    file: Path | None,
    *,
    write: bool,
) -> None:
    """Figure 7: each model on 1 to 64 GPUs, by default with the published batch for each."""
    table = Table(file, page=("flexflow", "flexflow.py scaling") if write else None)
    for name in names:
        alone: float | None = None
        for count in gpus:
            machine = roomy(f"{kind}x{count}")
            graph = graph_for(name, machine, batch)
            key: Row = {"model": name, "gpus": count, "kind": kind, "batch": graph.batch, "charge": charge}
            row = table.add(
                key | effort(budget, proposals), partial(scaling_row, graph, machine, budget, proposals, charge, alone)
            )
            if alone is None:
                alone = float(str(row["samples_per_s"])) / count
    table.write()
