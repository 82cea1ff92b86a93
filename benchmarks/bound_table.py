"""The lower bound over the fastest plan found, for every model of the zoo: the table of docs/explanation/bound.md.

    python benchmarks/bound_table.py --budget 60 --plans FOLDER

Plans are kept in the folder, a file for each model and machine; what is there is not searched again. A plan for fewer
processors of the same kind is a plan for more of them, so each machine takes the fastest of its own plan and of those
for smaller machines. Prints a row for each model, which of the bound's terms is the greatest, and the geometric mean of
the shares for each machine, with `missed` where it is below the share that is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean

import click

import maniple as mp
from maniple.request import model_of
from maniple.strategies.bound.lower_bound import terms_ns
from maniple.strategies.simulation.simulation import Simulation
from maniple.zoo.catalogue import ENTRIES

WANTED = 0.85
"""The geometric mean that is wanted."""


def kept_plan(model: str, name: str, budget: float, folder: Path) -> mp.Plan | None:
    """The plan of a model for a machine, searched for unless it is kept; None where none fits in memory."""
    file = folder / f"{model}-{name}.json"
    if file.exists():
        return mp.Plan.load(file)
    if budget <= 0:
        return None
    try:
        plan = mp.search(model_of(model, None), mp.Machine.preset(name), strategy="soap", budget=budget)
    except mp.RequestError as refused:  # it says how many bytes are missing, and where
        click.echo(f"{model} on {name}: {refused}", err=True)
        return None
    plan.save(file)
    return plan


def fastest_ns(graph: mp.Graph, machine: mp.Machine, plans: Sequence[mp.Plan]) -> int:
    """The time of the fastest of some plans on a machine that has the processors of all."""
    return min(Simulation(graph, machine, plan).makespan_ns for plan in plans)


def share(model: str, name: str, smaller: Sequence[str], budget: float, folder: Path) -> float | None:
    """Print the row of a model and a machine, and give the bound's share; None where there is no plan."""
    graph, machine = model_of(model, None), mp.Machine.preset(name)
    found = [kept_plan(model, each, budget, folder) for each in (*smaller, name)]
    plans = [plan for plan in found if plan is not None]
    if not plans:
        click.echo(f"| {model} | {name} | | | | no plan |")
        return None
    terms = terms_ns(graph, machine)
    reason, bound = max(terms.items(), key=lambda term: term[1])
    step = fastest_ns(graph, machine, plans)
    click.echo(f"| {model} | {name} | {bound / 1e6:.3f} | {step / 1e6:.3f} | {bound / step:.2f} | {reason} |")
    return bound / step


@click.command()
@click.option("--budget", type=float, default=60.0, help="Seconds of each search; 0: take only what is kept.")
@click.option("--plans", "folder", type=click.Path(file_okay=False, path_type=Path), required=True)
@click.option("--model", "models", multiple=True, default=tuple(ENTRIES), help="Which models; all by default.")
@click.option("--machine", "machines", multiple=True, default=("p100x4", "p100x16", "k80x64"))
def table(budget: float, folder: Path, models: Sequence[str], machines: Sequence[str]) -> None:
    """Print the table of docs/explanation/bound.md."""
    folder.mkdir(parents=True, exist_ok=True)
    click.echo("| model | machine | bound, ms | found, ms | bound / found | greatest term |\n|---|---|---|---|---|---|")
    for name in machines:
        kind, _, count = name.rpartition("x")
        sizes = (each.rpartition("x") for each in machines)
        smaller = [f"{k}x{n}" for k, _, n in sizes if k == kind and int(n) < int(count)]
        shares = [one for model in models if (one := share(model, name, smaller, budget, folder)) is not None]
        if shares:
            mean = geometric_mean(shares)
            verdict = "reached" if mean >= WANTED else f"missed ({WANTED} wanted)"
            click.echo(f"| **geometric mean of {len(shares)}** | {name} | | | {mean:.2f} | {verdict} |")


if __name__ == "__main__":
    table()
