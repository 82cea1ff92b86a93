"""Figure 1: the bytes that an iteration moves."""

from __future__ import annotations

import time
from pathlib import Path

import click

from flexflow.cluster import batch_option, budget_option, graph_for, machine_option, predicted
from flexflow.table import Row, Table, json_option
from maniple.operators.graph.graph import Graph
from maniple.runtime.machine.machine import Machine
from maniple.search_loop import search
from maniple.strategies.simulation.prediction import Prediction

PUBLISHED_BYTES = {"data_parallel": 65.8e9, "expert": 24.2e9, "soap": 12.1e9}
STRATEGIES = ("data_parallel", "expert", "model_parallel", "soap")


def fits(machine: Machine, found: Prediction) -> bool:
    """Tell whether every memory holds what it has to."""
    return all(need <= held.capacity_bytes for need, held in zip(found.memory_bytes, machine.memories, strict=True))


def transfers_row(strategy: str, graph: Graph, machine: Machine, budget: float) -> Row:
    """What a strategy's plan moves."""
    begun = time.perf_counter()
    plan = search(graph, machine, strategy=strategy, budget=budget)
    seconds = time.perf_counter() - begun
    found = predicted(graph, machine, plan)
    published = PUBLISHED_BYTES.get(strategy)
    return {
        "bytes_gb": found.bytes / 1e9,
        "published_gb": published / 1e9 if published else None,
        "over_published": found.bytes / published - 1 if published else None,
        "step_ms": found.step_ns / 1e6,
        "peak_gb": max(found.memory_bytes) / 1e9,
        "fits": fits(machine, found),
        "search_s": seconds,
    }


@click.command()
@click.option("--model", "name", default="nmt", show_default=True)
@click.option("--strategy", "strategies", multiple=True, default=STRATEGIES, help="Which plans.")
@machine_option
@batch_option
@budget_option
@json_option
def transfers(
    name: str, strategies: tuple[str, ...], machine_name: str, batch: int | None, budget: float, file: Path | None
) -> None:
    """Figure 1: the bytes of an iteration under data parallelism, the expert's plan and the found one."""
    machine, table = Machine.preset(machine_name), Table(file)
    graph = graph_for(name, machine, batch)
    for strategy in strategies:
        key: Row = {"plan": strategy, "model": name, "machine": machine_name, "batch": graph.batch, "budget": budget}
        table.add(key, lambda strategy=strategy: transfers_row(strategy, graph, machine, budget))
