"""Layouts of a perceptron stack on 64 processors: 1-D, 2-D and 3-D plans, simulated, and what a search of cubes finds.

    python benchmarks/cube_layouts.py                       four blocks of width 4,096, batch 1,024, on v100x64
    python benchmarks/cube_layouts.py --width 512 --machine v100x8

Each block is linear (width to 4 width), relu, linear (back), and a sum with its input: the layers that the layouts of
Z. Bian et al. (arXiv 2105.14450) differ in; attention, whose heads all three cut alike, is left out. The paper measured
3-D on 64 V100 2.32 times as fast as 1-D (Megatron) and 1.57 times as fast as 2-D, for other models and a network of
its own; what stands beside that here is simulated.

    layout    first linear    second linear    relu       sums
    1-D       n over all      k over all       n over all all of it everywhere
    2-D       b, n            b, n             b, n       b, n
    3-D       b n k           b k n            b n b      b b n
"""

from __future__ import annotations

from math import isqrt

import click

import maniple as mp
from maniple.strategies.frontier.cube import CUBES, on_cube
from maniple.strategies.interface.placement import complete
from maniple.strategies.interface.space import Choice, Space
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.search.memory_fit import needed_bytes
from maniple.strategies.simulation.simulation import Simulation

PUBLISHED = {"1-D": 2.32, "2-D": 1.57}
"""How much faster 3-D was measured to be, by the paper's abstract."""
BLOCKS = 4


def stack(batch: int, width: int) -> mp.Graph:
    """The blocks."""
    graph = mp.Graph("stack")
    x, y = graph.input("x", (batch, width)), graph.input("y", (batch,), dtype="int64")
    for block in range(BLOCKS):
        inner = graph.relu(graph.linear(x, 4 * width, name=f"up{block}"), name=f"relu{block}")
        x = graph.add(x, graph.linear(inner, width, name=f"down{block}"), name=f"sum{block}")
    graph.loss(graph.cross_entropy(x, y, name="loss"))
    return graph


def layouts(graph: mp.Graph, space: Space) -> dict[str, list[Choice]]:
    """The three layouts, operator by operator."""
    count = space.operators[0].processors
    side = isqrt(count) if isqrt(count) ** 2 == count else count // 2
    found: dict[str, list[Choice]] = {"1-D": [], "2-D": [], "3-D": []}
    for node, own in zip(graph.nodes, space.operators, strict=True):
        kind = node.name.rstrip("0123456789")
        names = [factor.name for factor in own.factors]
        whole = (1,) * len(names)

        def split(*degrees: int, whole: tuple[int, ...] = whole) -> Choice:
            made = (*degrees, *whole[len(degrees) :])
            total = 1
            for degree in made:
                total *= degree
            return Choice(made, count // total)

        one = {"up": split(1, count), "relu": split(1, count), "down": split(1, 1, count)}
        found["1-D"].append(one.get(kind, split()))
        found["2-D"].append(split(count) if kind == "loss" else split(side, count // side))
        three = {"up": (0, 1, 2), "down": (0, 2, 1), "relu": (0, 1, 0), "sum": (0, 0, 1), "loss": (0, 0, 0)}[kind]
        choice = on_cube(own, three)
        if choice is None:
            raise click.UsageError(
                f"{node.name} has no 3-D layout on {count} processors: take a larger batch and width"
            )
        found["3-D"].append(choice)
    return found


def plan_of(graph: mp.Graph, machine: mp.Machine, space: Space, choices: list[Choice]) -> mp.Plan:
    """A layout as a plan."""
    named = zip(space.names, space.operators, choices, strict=True)
    return complete(Problem(graph, machine), "layouts", tuple((name, own.plan(choice)) for name, own, choice in named))


def simulated(graph: mp.Graph, machine: mp.Machine, plan: mp.Plan) -> tuple[float, int]:
    """The milliseconds of a step, and the bytes of the memory that holds most."""
    simulation = Simulation(graph, machine, plan)
    return simulation.makespan_ns / 1e6, max(simulation.allocated_bytes() or needed_bytes(simulation))


@click.command()
@click.option("--machine", "preset", default="v100x64", show_default=True, help="of q^3 processors")
@click.option("--batch", default=1024, show_default=True)
@click.option("--width", default=4096, show_default=True)
@click.option("--search", is_flag=True, help="also search the frontier of all layouts of the cube")
def main(preset: str, batch: int, width: int, *, search: bool) -> None:
    """Simulate the layouts, and print them beside the published ratios."""
    graph, machine = stack(batch, width), mp.Machine.preset(preset)
    if len(machine.processors) not in CUBES:
        raise click.UsageError(f"{preset}: expected q^3 processors, such as 8 or 64")
    space = Space.of(graph, len(machine.processors))
    plans = {name: plan_of(graph, machine, space, chosen) for name, chosen in layouts(graph, space).items()}
    plans["3-D, weights gathered for each pass"] = plans["3-D"].with_zero(3, graph, machine)
    rows = {name: simulated(graph, machine, plan) for name, plan in plans.items()}
    print("| layout | step ms | MiB | times 3-D | published |\n|---|---|---|---|---|")
    for name, (step, size) in rows.items():
        told = PUBLISHED.get(name, "")
        print(f"| {name} | {step:.2f} | {size / 2**20:.1f} | {step / rows['3-D'][0]:.2f} | {told} |", flush=True)
    if search:
        found = mp.search(graph, machine, strategy="pareto", objective="pareto", space=["cube"])
        for point in found:
            times = point.step_s * 1e3 / rows["3-D"][0]
            print(f"| search | {1e3 * point.step_s:.2f} | {point.peak_memory_bytes / 2**20:.1f} | {times:.2f} | |")


if __name__ == "__main__":
    main()
