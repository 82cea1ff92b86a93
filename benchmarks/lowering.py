"""Lowering: what dependence analysis and composition cost, for training steps and for traces.

    python benchmarks/lowering.py                prints tables and one JSON object
    python benchmarks/lowering.py --json         prints the JSON object alone

A training step is lowered whole, for all ranks, with nothing known from before: `data_parallel`, whose layers share
their analysis, and a random plan, whose layers share next to nothing. A trace is one rank's: `chain`
writes ten tiles again and again, `stencil` has four points that read their neighbours. A world is a data-parallel step
of 16 samples a rank as a simulator takes it, with all rows of all ranks, timed as they run: on GPUs in hosts of eight,
`h100xRANKS`. A part is what rank 1 of the same step does at its start: it lowers the schedule, of which it lists its
own pushes alone (`pushes`, `uses`: how many, of `all_rows`), and lays out its own lanes (`lanes_s` of the time). Times
are of this thread; memory is the most that the process has had so far, so worlds ascend.
"""

from __future__ import annotations

import json
import resource
import time

import click

import maniple as mp
from maniple.models import model
from maniple.operators.lowering.expansion import Expansion
from maniple.operators.lowering.step_program import FragmentCache, lower
from maniple.operators.lowering.weight import weights
from maniple.process.gc_pause import pause_gc
from maniple.regions.logical_region import LogicalRegion
from maniple.regions.privilege import READ, READ_WRITE, WRITE_DISCARD
from maniple.regions.rectangle import Rect
from maniple.regions.validity import Validity
from maniple.runtime.analysis import template
from maniple.runtime.machine.machine import Machine
from maniple.runtime.program.region_table import RegionTable
from maniple.runtime.schedule.lane import Layout
from maniple.runtime.schedule.launch import Launch, Point, Requirement
from maniple.runtime.schedule.memory.rank_instances import RankInstances
from maniple.strategies.simulation.compilation import compile_all
from maniple.strategies.simulation.simulation import Simulation

CLOCK = time.thread_time
Figures = dict[str, float | int | str]


def step(name: str, graph: mp.Graph, strategy: str, ranks: int) -> Figures:
    """Lower a training step."""
    machine = Machine.cpu(1, ranks=ranks)
    plan = mp.search(graph, machine, strategy=strategy, seed=1)
    optimizer, table = mp.SGD(lr=0.1, momentum=0.9), RegionTable()
    expansion = Expansion(graph, plan, machine, weights(graph, plan, machine, optimizer, table), table)
    program = expansion.training_step(optimizer)
    begun = CLOCK()
    schedule = lower(program, FragmentCache(machine))
    return {"what": f"{name}, {strategy}", "ranks": ranks, **figures(len(schedule), CLOCK() - begun)}


def world(name: str, image: int, ranks: int) -> Figures:
    """Lower a data-parallel step of all ranks, and time its rows."""
    graph, machine = model(name, 16 * ranks, image=image), Machine.preset(f"h100x{ranks}")
    plan = mp.search(graph, machine, strategy="data_parallel", seed=1)
    begun = CLOCK()
    simulation = Simulation(graph, machine, plan)
    found = figures(len(simulation.ledger.sequence), CLOCK() - begun)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"what": f"{name}, world of h100", "ranks": ranks, **found, "most_mb": most}


def part(name: str, image: int, ranks: int) -> Figures:
    """Lower a data-parallel step and lay out the lanes of one rank, which shares memory with none."""
    graph, machine = model(name, 16 * ranks, image=image), Machine.preset(f"h100x{ranks}")
    plan = mp.search(graph, machine, strategy="data_parallel", seed=1)
    optimizer, table = mp.SGD(lr=0.1, momentum=0.9), RegionTable()
    expansion = Expansion(graph, plan, machine, weights(graph, plan, machine, optimizer, table), table)
    program, here = expansion.training_step(optimizer), machine.memories_of(1)
    begun = CLOCK()
    schedule = lower(program, FragmentCache(machine), here)
    lowered = CLOCK()
    with pause_gc():  # as who replays a schedule does
        lanes = Layout(schedule, here, (), RankInstances(schedule, here, program.lasting).temporary).lanes()
        ended = CLOCK()
    found = figures(sum(map(len, lanes.steps.values())), ended - begun)
    counted = {"all_rows": len(schedule), "pushes": len(schedule.transfer[1]), "uses": len(schedule.access[1])}
    return {"what": f"{name}, part of rank 1", "ranks": ranks, **found, "lanes_s": round(ended - lowered, 3), **counted}


def trace(pattern: str, tasks: int) -> Figures:
    """Lower a trace."""
    width = 10 if pattern == "chain" else 4
    regions = [LogicalRegion(number, f"x{number}", Rect.of_shape((width,)), "float32") for number in range(2)]
    own = tuple(Rect((i,), (i + 1,)) for i in range(width))
    near = tuple(Rect((max(0, i - 1),), (min(width, i + 2),)) for i in range(width))
    points = tuple(Point((i,), 0) for i in range(width))
    uses = [
        (Requirement(regions[0], READ_WRITE, own),)
        if pattern == "chain"
        else (Requirement(regions[turn], WRITE_DISCARD, own), Requirement(regions[1 - turn], READ, near))
        for turn in range(2)
    ]
    launches = [Launch("work", points, uses[number % 2]) for number in range(tasks // width)]
    states = {region.id: Validity.of_holdings({0: region.bounds}) for region in regions}
    begun = CLOCK()
    made = template.lower(launches, states, Machine.cpu(1), lambda _: lambda first, second: int(first != second))
    return {"what": f"trace, {pattern}", "ranks": 1, **figures(len(made.schedule), CLOCK() - begun)}


def figures(rows: int, seconds: float) -> Figures:
    """What is told of a lowering."""
    return {"rows": rows, "seconds": round(seconds, 3), "us_per_row": round(seconds / rows * 1e6, 1)}


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--model", "name", default="resnet50", help="Model of the training steps.")
@click.option("--image", default=64, help="Side of its images.")
@click.option("--ranks", multiple=True, type=int, default=(2, 4), help="Ranks of the training steps.")
@click.option("--world", "worlds", multiple=True, type=int, default=(64, 256, 1_024), help="Ranks of worlds.")
@click.option("--part", "parts", multiple=True, type=int, default=(16, 64), help="Ranks of worlds of which one starts.")
@click.option("--tasks", multiple=True, type=int, default=(1_000, 10_000, 100_000), help="Tasks of a trace.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON object alone.")
def main(
    *,
    name: str,
    image: int,
    ranks: tuple[int, ...],
    worlds: tuple[int, ...],
    parts: tuple[int, ...],
    tasks: tuple[int, ...],
    as_json: bool,
) -> None:
    """Measure and print."""
    compile_all()
    graph = model(name, 64, image=image)
    found = [step(name, graph, strategy, count) for strategy in ("data_parallel", "random") for count in ranks]
    found += [world(name, image, count) for count in sorted(worlds)]
    found += [part(name, image, count) for count in parts]
    found += [trace(pattern, count) for pattern in ("chain", "stencil") for count in tasks]
    if not as_json:
        for entry in found:
            print(
                "{what:30} {ranks:4} ranks {rows:7} rows {seconds:8.3f} s {us_per_row:8.1f} us per row".format(**entry),
                f"{entry['most_mb']} MB" if "most_mb" in entry else "",
                f"lanes {entry['lanes_s']} s" if "lanes_s" in entry else "",
            )
    print(json.dumps({"results": found}))


if __name__ == "__main__":
    main()
