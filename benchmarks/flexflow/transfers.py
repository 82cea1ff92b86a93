"""Figure 1: the bytes that an iteration moves."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from flexflow.cluster import (
    batch_option,
    budget_option,
    effort,
    found,
    graph_for,
    machine_option,
    predicted,
    proposals_option,
)
from flexflow.table import Row, Table, json_option, write_option
from maniple.operators.graph.graph import Graph
from maniple.runtime.machine.machine import Machine
from maniple.strategies.simulation.prediction import Prediction

PUBLISHED_BYTES = {"data_parallel": 65.8e9, "expert": 24.2e9, "soap": 12.1e9}
STRATEGIES = ("data_parallel", "expert", "model_parallel", "soap")


def fits(machine: Machine, made: Prediction) -> bool:
    """Tell whether every memory holds what it has to."""
    return all(need <= held.capacity_bytes for need, held in zip(made.memory_bytes, machine.memories, strict=True))


def transfers_row(strategy: str, graph: Graph, machine: Machine, budget: float, proposals: int | None) -> Row:
    """What a strategy's plan moves."""
    made = predicted(graph, machine, found(graph, machine, strategy, budget, proposals))
    published = PUBLISHED_BYTES.get(strategy)
    return {
        "bytes_gb": made.bytes / 1e9,
        "published_gb": published / 1e9 if published else None,
        "over_published": made.bytes / published - 1 if published else None,
        "step_ms": made.step_ns / 1e6,
        "peak_gb": max(made.memory_bytes) / 1e9,
        "fits": fits(machine, made),
    }


@click.command()
@click.option("--model", "name", default="nmt", show_default=True)
@click.option("--strategy", "strategies", multiple=True, default=STRATEGIES, help="Which plans.")
@machine_option
@batch_option
@budget_option
@proposals_option
@json_option
@write_option
def transfers(
    name: str,
    strategies: tuple[str, ...],
    machine_name: str,
    batch: int | None,
    budget: float,
    proposals: int | None,
    file: Path | None,
    *,
    write: bool,
) -> None:
    """Figure 1: the bytes of an iteration under data parallelism, the expert's plan and the found one."""
    machine = Machine.preset(machine_name)
    table = Table(file, page=("flexflow", "flexflow.py transfers") if write else None)
    graph = graph_for(name, machine, batch)
    for strategy in strategies:
        key: Row = {"plan": strategy, "model": name, "machine": machine_name, "batch": graph.batch}
        key |= effort(budget, proposals)
        table.add(key, partial(transfers_row, strategy, graph, machine, budget, proposals))
    table.write()
