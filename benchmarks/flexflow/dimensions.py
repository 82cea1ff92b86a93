"""Figure 6: what each dimension of the search is good for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

import click

import maniple as mp
from flexflow.cluster import budget_option, predicted
from flexflow.table import Row, Table, json_option
from maniple.operators.graph.graph import Graph
from maniple.operators.plan.plan import Plan
from maniple.runtime.machine.machine import Machine
from maniple.search_loop import search
from maniple.strategies.interface.placement import complete
from maniple.strategies.interface.space import Choice, OperatorSpace, Space
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap.evaluation import Evaluation


def samples() -> Graph:
    """Two linear layers over very many samples: their weights are nothing beside them."""
    g = mp.Graph("samples")
    x, y = g.input("x", (65536, 256)), g.input("y", (65536,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(g.relu(g.linear(x, 256)), 16), y))
    return g


def operators() -> Graph:
    """Two branches of large weights for few samples: cutting either moves more than running them side by side."""
    g = mp.Graph("operators")
    x, y = g.input("x", (8, 512)), g.input("y", (8,), dtype="int64")
    left, right = (g.linear(g.linear(x, 4096), 64) for _ in range(2))
    g.loss(g.cross_entropy(g.add(left, right), y))
    return g


def attributes() -> Graph:
    """Two convolutions over one large image, with more channels than the image has."""
    g = mp.Graph("attributes")
    x, y = g.input("x", (1, 3, 512, 512)), g.input("y", (1,), dtype="int64")
    h = g.conv2d(x, out_channels=64, kernel_size=3, padding=1)
    h = g.max_pool2d(g.conv2d(h, out_channels=64, kernel_size=3, padding=1), kernel_size=128)
    g.loss(g.cross_entropy(g.linear(g.flatten(h), 10), y))
    return g


def parameters() -> Graph:
    """A choice among very many words for few samples."""
    g = mp.Graph("parameters")
    x, y = g.input("x", (64, 512)), g.input("y", (64,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(x, 65536), y))
    return g


def reductions() -> Graph:
    """A wide hidden layer between narrow ones, whose second layer adds up over it."""
    g = mp.Graph("reductions")
    x, y = g.input("x", (256, 64)), g.input("y", (256,), dtype="int64")
    g.loss(g.cross_entropy(g.linear(g.relu(g.linear(x, 65536)), 8), y))
    return g


EXAMPLES: dict[str, Callable[[], Graph]] = {
    "sample": samples,
    "operator": operators,
    "attribute": attributes,
    "parameter": parameters,
    "reduction": reductions,
}


def without(space: OperatorSpace, dimension: str, choices: Sequence[Choice]) -> Iterator[Choice]:
    """Leave out the choices that use a dimension.

    Without the operator dimension every operator runs on the first processors.
    """
    for choice in choices:
        roles = {
            "reduction" if factor.reduction else factor.role
            for factor, degree in zip(space.factors, choice.degrees, strict=True)
            if degree > 1
        }
        if dimension == "operator" and (choice.start, choice.stride) != (0, 1):
            continue
        if dimension not in roles:
            yield choice


def best_plan(graph: Graph, machine: Machine, dimension: str | None) -> tuple[float, Plan, int]:
    """Simulate all plans, or all without one dimension; give the best one's seconds, itself, and their number.

    The processors are alike, so the first operator begins at the first one.
    """
    space = Space.of(graph, len(machine.processors))
    sets = [
        list(own.choices() if dimension is None else without(own, dimension, own.choices())) for own in space.operators
    ]
    sets[0] = [choice for choice in sets[0] if choice.start == 0]
    start = tuple(choices[0] for choices in sets)
    chosen = zip(space.names, space.operators, start, strict=True)
    plan = complete(Problem(graph, machine), "start", tuple((name, own.plan(choice)) for name, own, choice in chosen))
    evaluation = Evaluation(Simulation(graph, machine, plan), space, start)
    best, found, count = evaluation.cost, start, 0
    for choices in product(*sets):
        count += 1
        cost = evaluation.move_to(choices)
        if cost < best:
            best, found = cost, choices
    evaluation.move_to(found)
    return best, evaluation.plan(), count


def dimensions_row(graph: Graph, machine: Machine, dimension: str, budget: float) -> Row:
    """The found plan, and the best of all plans without a dimension."""
    found = search(graph, machine, strategy="soap", budget=budget)
    mine = predicted(graph, machine, found).step_ns / 1e6
    best, _, count = best_plan(graph, machine, dimension)
    return {
        "found_ms": mine,
        "best_without_ms": best * 1e3,
        "speed_up": best * 1e3 / mine,
        "plans_without": count,
        "found": ", ".join(f"{name} {row.split()} {list(row.processors)}" for name, row in found.operators),
    }


@click.command()
@click.option("--machine", "machine_name", default="p100x2", show_default=True, help="A preset, of alike processors.")
@budget_option
@json_option
def dimensions(machine_name: str, budget: float, file: Path | None) -> None:
    """Figure 6: the found plan against the best of all plans without one dimension."""
    machine, table = Machine.preset(machine_name), Table(file)
    for dimension, make in EXAMPLES.items():
        key: Row = {"dimension": dimension, "machine": machine_name, "budget": budget}
        table.add(key, lambda d=dimension, m=make: dimensions_row(m(), machine, d, budget))
