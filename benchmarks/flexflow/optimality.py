"""Figure 4: found plans against the best ones of small problems."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from flexflow.cluster import budget_option, predicted
from flexflow.table import Row, Table, json_option
from maniple.models import model
from maniple.operators.graph.graph import Graph
from maniple.runtime.machine.machine import Machine
from maniple.search_loop import search

NETWORKS: dict[str, dict[str, int]] = {"lenet": {}, "rnnlm": {"steps": 2, "chunk": 1}}


def optimality_row(graph: Graph, machine: Machine, strategy: str, budget: float) -> Row:
    """What a search finds, what it has proved, and what it says of it."""
    begun = time.perf_counter()
    plan = search(graph, machine, strategy=strategy, budget=budget)
    seconds = time.perf_counter() - begun
    bound_s = plan.predicted.bound_s
    return {
        "step_us": predicted(graph, machine, plan).step_ns / 1e3,
        "proved_us": None if bound_s is None else bound_s * 1e6,
        "search_s": seconds,
        "says": str(dict(dict(plan.explanation).get("", ())).get("search", "")),
    }


@click.command()
@click.option("--model", "names", multiple=True, default=tuple(NETWORKS))
@click.option("--strategy", "strategies", multiple=True, default=("exhaustive_layers", "optcnn", "soap"))
@click.option("--machine", "machine_name", default="p100x4", show_default=True, help="A preset.")
@budget_option
@json_option
def optimality(
    names: Sequence[str], strategies: Sequence[str], machine_name: str, budget: float, file: Path | None
) -> None:
    """Figure 4: `soap` and `optcnn` against `exhaustive_layers` on LeNet and an RNNLM of two steps."""
    machine, table = Machine.preset(machine_name), Table(file)
    for name in names:
        graph = model(name, **NETWORKS[name])
        for strategy in strategies:
            key: Row = {"model": name, "machine": machine_name, "strategy": strategy, "budget": budget}
            table.add(key, lambda g=graph, s=strategy: optimality_row(g, machine, s, budget))
