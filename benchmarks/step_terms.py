"""Where a simulated step's time goes: the all-reduce of data parallelism, and a found plan beside the lower bound.

    python benchmarks/step_terms.py share                           gradients and weights of data parallelism, by model
    python benchmarks/step_terms.py terms --proposals 3000          gpt on h100x64: from the bound to a found plan
    python benchmarks/step_terms.py share --json FILE --write       ... into their place on the pages, of what FILE has

Everything is simulated, and searches make a fixed number of proposals, so no figure depends on what else a computer
does. *Without links* is the same plan on the same machine whose links take no time: what is left is tasks and their
order. The bandwidth bound of an all-reduce of S bytes, of gradients to the homes of weights and of weights from there,
is the greater of two closed forms: 2 (h - 1) / h S over what all links from a host to the network carry together, and
2 (n - 1) / n S over what all links from a memory do.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import click
import numpy as np
from flexflow.table import Row, Table, json_option, write_option

import maniple as mp
from maniple.models import model
from maniple.runtime.schedule.schedule import RowKind
from maniple.strategies.bound.lower_bound import terms_ns
from maniple.strategies.simulation.simulation import Simulation

MOVES = {kind.name.lower() for kind in RowKind if kind > RowKind.FOLD}
MODELS = {"alexnet": 256, "vgg16": 64, "resnet50": 64, "resnet101": 64, "inception_v3": 64, "rnnlm": 64, "gpt": 64}
"""Samples of a step, all GPUs together."""
MS = 1e-6


def unlinked(machine: mp.Machine) -> mp.Machine:
    """The machine with links that take no time."""
    return replace(machine, links=tuple(replace(link, latency_s=0.0, bandwidth=1e30) for link in machine.links))


def busy_ms(simulation: Simulation) -> tuple[np.ndarray, np.ndarray]:
    """For how long each processor and each link is held."""
    _, (_, lanes, spans), _, count = simulation.columns()
    held = np.zeros(count)
    np.add.at(held, lanes, spans)
    processors = len(simulation.machine.processors)
    return held[:processors] * MS, held[processors:] * MS


def path_ms(simulation: Simulation) -> tuple[float, float]:
    """Milliseconds of tasks, and of movements, on the critical path."""
    moves = tasks = reached = 0
    for name, begin, end in simulation.predict().critical_path:  # a row may begin while the one before still arrives
        moved = name.split()[0] in MOVES
        moves, tasks = moves + (end - max(begin, reached)) * moved, tasks + (end - max(begin, reached)) * (not moved)
        reached = end
    return tasks * MS, moves * MS


def bandwidth_bound_ms(graph: mp.Graph, machine: mp.Machine) -> float:
    """Milliseconds that an all-reduce of all gradients takes at least, by what hosts and memories can send."""
    size = sum(prod(parameter.shape) for parameter in graph.parameters) * 4
    hosts, count = len({memory.host for memory in machine.memories}), len(machine.memories)
    network = sum(link.bandwidth for link in machine.links if link.target == "network") / hosts
    memory = sum(link.bandwidth for link in machine.links if link.source == 0)
    between = 2 * (hosts - 1) / hosts * size / network if hosts > 1 else 0.0
    return 1e3 * max(between, 2 * (count - 1) / count * size / memory)


def share_row(graph: mp.Graph, machine: mp.Machine) -> Row:
    """What data parallelism spends on its gradients and weights."""
    plan = mp.search(graph, machine)
    simulation = Simulation(graph, machine, plan)
    alone = Simulation(graph, unlinked(machine), plan_on(plan, machine))
    step, links = simulation.makespan_ns * MS, busy_ms(simulation)[1]
    bound = bandwidth_bound_ms(graph, machine)
    return {
        "step, ms": step,
        "without links": alone.makespan_ns * MS,
        "share of links": f"{100 * (1 - alone.makespan_ns * MS / step):.0f} %",
        "busiest link": float(links.max()),
        "bandwidth bound": bound,
        "busiest / bound": float(links.max()) / bound,
        "step / bound": step / bound,
    }


def plan_on(plan: mp.Plan, machine: mp.Machine) -> mp.Plan:
    """The plan for a machine whose links take no time."""
    return replace(plan, machine=unlinked(machine).fingerprint())


def terms_row(graph: mp.Graph, machine: mp.Machine, strategy: str, proposals: int, *, links: bool) -> Row:
    """The terms of the step of a plan that is found for a machine, or for one whose links take no time."""
    searched = machine if links else unlinked(machine)
    plan = mp.search(graph, searched, strategy=strategy, proposals=proposals, cores=1)
    simulation = Simulation(graph, searched, plan)
    processors, wires = busy_ms(simulation)
    tasks, moves = path_ms(simulation)
    bound = max(terms_ns(graph, machine).values()) * MS
    step = simulation.makespan_ns * MS
    return {
        "step, ms": step,
        "mean GPU's work": float(processors.mean()),
        "busiest GPU's": float(processors.max()),
        "busiest link's": float(wires.max()),
        "tasks on the path": tasks,
        "movements on it": moves,
        "GB moved": simulation.bytes / 1e9,
        "bound": bound,
        "step / bound": step / bound,
    }


@click.group()
def main() -> None:
    """Say where a step's time goes."""


@main.command()
@click.option("--model", "names", multiple=True, default=tuple(MODELS))
@click.option("--machine", "machines", multiple=True, default=("k80x64", "h100x64"))
@json_option
@write_option
def share(names: tuple[str, ...], machines: tuple[str, ...], file: Path | None, *, write: bool) -> None:
    """The all-reduce of data parallelism, its share of the step, and the bandwidth bound."""
    table = Table(file, page=("movement-plans", "step_terms.py share") if write else None)
    for name in names:
        for machine_name in machines:
            machine, graph = mp.Machine.preset(machine_name), model(name, batch=MODELS.get(name, 64))
            key: Row = {"model": name, "machine": machine_name, "samples": graph.batch}
            table.add(key, lambda graph=graph, machine=machine: share_row(graph, machine))
    table.write()


@main.command()
@click.option("--model", "name", default="gpt", show_default=True)
@click.option("--machine", "machine_name", default="h100x64", show_default=True)
@click.option("--batch", default=8, show_default=True)
@click.option("--strategy", "strategies", multiple=True, default=("data_parallel", "soap"))
@click.option("--proposals", default=3000, show_default=True, help="Of each search.")
@json_option
@write_option
def terms(
    name: str,
    machine_name: str,
    batch: int,
    strategies: tuple[str, ...],
    proposals: int,
    file: Path | None,
    *,
    write: bool,
) -> None:
    """A found plan's step by term, beside the lower bound; and what is found where links take no time."""
    table = Table(file, page=("bound", "step_terms.py terms") if write else None)
    graph, machine = model(name, batch=batch), mp.Machine.preset(machine_name)
    for links in (True, False):
        for strategy in strategies if links else strategies[-1:]:
            key: Row = {"model": name, "machine": machine_name, "samples": batch, "strategy": strategy}
            key |= {"proposals": proposals, "links": "as they are" if links else "take no time"}
            table.add(key, lambda s=strategy, o=links: terms_row(graph, machine, s, proposals, links=o))
    table.write()


if __name__ == "__main__":
    main()
