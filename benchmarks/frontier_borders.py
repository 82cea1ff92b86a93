"""What crosses into a stage, in a frontier's model: the fastest pipelines with it and without it, and simulated.

    python benchmarks/frontier_borders.py gpt v100x16      each with two lines: what is found, and if nothing crossed

Of each arrangement of stages, order and micro-batches it takes the fastest point of the model, with at most CUTS places
where a stage may end. Everything is simulated, so no figure depends on what else a computer does.
"""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import patch

import click

import maniple as mp
from maniple.models import model
from maniple.strategies.frontier import arrangement, stage_search
from maniple.strategies.frontier.arrangement import Arrangement
from maniple.strategies.frontier.pareto import Pareto, rank_correlation
from maniple.strategies.frontier.stage_border import StageBorder
from maniple.strategies.frontier.stage_search import StageSearch
from maniple.strategies.frontier.stage_weight import StageWeight
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.simulation.simulation import Simulation

CUTS = 3
ARRANGEMENTS = (
    Arrangement(1, "1f1b", 2),
    Arrangement(2, "1f1b", 2),
    Arrangement(2, "zb_h1", 2),
    Arrangement(2, "zb_h1", 4),
    Arrangement(4, "1f1b", 4),
    Arrangement(4, "zb_h1", 4),
)

Row = tuple[str, float, float]
"""A plan's name, and its milliseconds by the model and simulated."""


def whole(problem: Problem) -> Row:
    """The fastest plan without stages."""
    pareto = Pareto()
    state = pareto.init(problem)
    while not state.simulated:  # the fastest is the first
        state = pareto.step(state)
    found = state.simulated[0]
    return "without stages", 1e3 * found.model_s, 1e3 * found.step_s


def pipelines(problem: Problem, *, crossing: bool) -> list[Row]:
    """The fastest pipeline of each arrangement."""
    graph, machine, rows = problem.graph, problem.machine, list[Row]()
    with ExitStack() as patches:
        for module in (arrangement, stage_search):
            patches.enter_context(patch.object(module, "MOST_CUTS", CUTS))
        for price in () if crossing else (StageBorder, StageWeight):
            patches.enter_context(patch.object(price, "added", lambda _self, own, _first: tuple(own)))
        search = StageSearch(problem, (False,) * len(graph.nodes), 0.1, 2)
        for each in ARRANGEMENTS:
            if each.micro_batches > graph.batch:
                continue
            point = search.points(each)[-1]
            step = Simulation(graph, machine, search.plan(point, "pareto")).makespan_ns
            stages = "one stage" if each.stages == 1 else f"{each.stages} stages, {each.order}"
            name = f"{stages}, {each.micro_batches} micro-batches"
            rows.append((name, point.ticks / 1e6, step / 1e6))
    return rows


def row(name: str, machine: str, found: Row, other: Row | None) -> str:
    """A row of the table."""
    figures = [found[1], found[2], *(() if other is None else other[1:])]
    cells = [*(f" {figure:.2f} " for figure in figures), *([" "] * (4 - len(figures)))]
    return f"| {name} | `{machine}` | {found[0]} |{'|'.join(cells)}|"


@click.command()
@click.argument("name")
@click.argument("machine")
def main(name: str, machine: str) -> None:
    """Print the table of a model on a machine, and the ranks of model and simulation."""
    problem = Problem(model(name), mp.Machine.preset(machine))
    alone, mine, free = whole(problem), pipelines(problem, crossing=True), pipelines(problem, crossing=False)
    print("| model | machine | plan | model ms | simulated | model ms if nothing crossed | simulated |")
    print(f"|{'---|' * 7}")
    print(row(name, machine, alone, None))
    for found, other in zip(mine, free, strict=True):
        print(row(name, machine, found, other))
    taus = [rank_correlation([r[1] for r in rows], [r[2] for r in rows]) for rows in ([alone, *mine], [alone, *free])]
    told = ["of one time" if tau is None else f"{tau:.2f}" for tau in taus]
    print(f"\nKendall's tau of model and simulation: {told[0]}, and {told[1]} if nothing crossed.")


if __name__ == "__main__":
    main()
