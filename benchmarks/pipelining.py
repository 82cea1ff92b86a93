"""Pipelines, raced against `torch.distributed.pipelining`: the same stages, micro-batches and orders on two processes.

    python benchmarks/pipelining.py                    all models; writes the table into docs/explanation/pipelines.md
    python benchmarks/pipelining.py --print mlp gpt    some, and prints their rows alone

Sides take turns on two processes of one core each, a few steps at a time, and every figure is a median over rounds. Two
stages are one for each process; four are two for each, in turn or in a V as the order has it. Beside them is Maniple on
one process of one core, from which follows what the order allows: two balanced stages and m micro-batches take
(m + 1) / 2m of it. An order in which torch fails has what torch said in its row, and the others race.
"""

from __future__ import annotations

import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist
from page_table import write_table
from training import torch_modes
from training.models import RACES, Race
from training.torch_modes import RATE, Step

import maniple as mp
from maniple.runtime.control.world import World
from maniple.strategies.interface.placement import complete
from maniple.strategies.interface.strategy import Problem

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "pipelines.md"
BEGIN, END = "<!-- benchmarks/pipelining.py: begin -->", "<!-- benchmarks/pipelining.py: end -->"
HEAD = (
    "| model | stages | micro-batches | order | torch ms | Maniple ms | torch / Maniple | one process ms "
    "| of what the order allows |\n|---|---|---|---|---|---|---|---|---|"
)
ORDERS = {2: ("gpipe", "1f1b"), 4: ("interleaved_1f1b", "zbv")}
OURS = {"zbv": "v_zb"}
"""What orders of torch's are called here, where that is another name."""
OPTIMIZER = mp.SGD(lr=RATE, momentum=0.9)
NAMES = ("cnn", "mlp", "lstm", "gpt")


def pipeline_plan(race: Race, graph: mp.Graph, machine: mp.Machine, stages: int, order: str, parts: int) -> mp.Plan:
    """A plan whose stages are cut where torch's are."""
    borders = (*race.cuts[stages], len(race.module().blocks))
    held = {stage: rank for rank in range(torch_modes.PEERS) for stage in torch_modes.stages_of(rank, stages, order)}
    placed, grouped = [], [list[str]() for _ in range(stages)]
    whole = mp.search(graph, mp.Machine.preset("cpu:1"), strategy="data_parallel")
    for name, config in whole.operators:
        block = int(name.split(".")[1]) if name.startswith("blocks.") else len(race.module().blocks) - 1
        stage = next(number for number, border in enumerate(borders) if block < border)
        grouped[stage].append(name)
        placed.append((name, replace(config, processors=(held[stage],) * len(config.processors))))
    plan = complete(Problem(graph, machine), "manual", tuple(placed), ())
    return plan.with_pipeline(grouped, order=OURS.get(order, order), micro_batches=parts)


def said_by(step: Step, world: World) -> str:
    """What a side of all processes says as it fails in its first step; nothing where it does not."""
    said = b""
    try:
        step()
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        said = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0].encode()
    every = [each.decode() for each in world.control.gather(said)]
    # One that only waited for another says so, and nothing of what is wrong.
    own = [each for each in every if each and not re.search("timed? ?out|connection closed", each, re.IGNORECASE)]
    return next(iter(own), "".join(every)).replace("|", "/")


def be(name: str, stages: int, options: dict[str, Any]) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Be a process of one race: what sides took, and what those said that failed."""
    torch.set_num_threads(1)
    race, world, parts = RACES[name], mp.world(), options["micro_batches"]
    address = f"tcp://127.0.0.1:{options['port']}"
    dist.init_process_group("gloo", init_method=address, rank=world.rank, world_size=world.size)
    x, y = race.data(race.batch)
    graph, machine = mp.from_torch(race.module(), (x, y)), mp.Machine.detect()
    sides: dict[str, Step] = {}
    trainers = ExitStack()

    def trained(plan: mp.Plan, alone: World | None = None) -> Step:
        made = mp.Trainer(graph, plan, optimizer=OPTIMIZER, world=alone)
        trainer = trainers.enter_context(made)
        return lambda: trainer.step(x, y)

    for order in ORDERS[stages]:
        sides[f"torch {order}"] = torch_modes.pipelined(race, race.batch, "sgd", order, parts, stages)
        sides[f"maniple {order}"] = trained(pipeline_plan(race, graph, machine, stages, order, parts))
    sides["maniple, data parallel"] = trained(mp.search(graph, machine, strategy="data_parallel"))
    if world.rank == 0:
        whole = mp.search(graph, mp.Machine.preset("cpu:1"), strategy="data_parallel")
        sides["maniple, one process"] = trained(whole, World.solo(cores=1))
    else:
        sides["maniple, one process"] = lambda: 0.0

    def meet(number: int) -> int:
        return int(world.control.gather(str(number).encode())[0])

    with trainers:
        failed = {side: said_by(step, world) for side, step in sides.items() if side.startswith("torch")}
        failed = {side: said for side, said in failed.items() if said}
        running = {side: step for side, step in sides.items() if side not in failed}
        found = torch_modes.race_of(running, options["rounds"], options["seconds"], meet)
    dist.destroy_process_group()
    return found, failed


def raced(name: str, stages: int, options: dict[str, Any]) -> Any:
    """Start the processes of one race, and read what the first found."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "found.json"
        told = {**options, "port": free_port()}
        own = [__file__, "--be", json.dumps([name, stages, told]), "--target", str(target)]
        launch = ["-m", "maniple.cli", "run", "--nodes", "2", "--cores", "1"]
        subprocess.run([sys.executable, *launch, *own], check=True, stdout=subprocess.DEVNULL)
        return json.loads(target.read_text())


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def rows(name: str, stages: int, parts: int, times: dict[str, list[float]], failed: dict[str, str]) -> list[str]:
    """A row for each order, which has what torch said where it failed, and one for data parallelism."""
    medians = {side: statistics.median(values) for side, values in times.items()}
    alone, lines = times["maniple, one process"], []
    for order in ORDERS[stages]:
        ours, theirs = times[f"maniple {order}"], times.get(f"torch {order}")
        ratio, took = "", failed.get(f"torch {order}", "")
        if theirs is not None:
            ratio = f"{statistics.median(a / b for a, b in zip(theirs, ours, strict=True)):.2f}"
            took = f"{statistics.median(theirs):.2f}"
        allowed = statistics.median(a * (parts + 1) / (2 * parts) / b for a, b in zip(alone, ours, strict=True))
        best = f"{allowed:.2f}" if stages == torch_modes.PEERS else ""
        both = took, f"{medians[f'maniple {order}']:.2f}", ratio
        cells = (name, stages, parts, order, *both, f"{medians['maniple, one process']:.2f}", best)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines.append(f"| {name} | | | data parallel | | {medians['maniple, data parallel']:.2f} | | | |")
    return lines


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*NAMES]))
@click.option("--micro-batches", default=8, show_default=True, help="parts of a batch")
@click.option("--rounds", default=7, show_default=True, help="figures are medians over them")
@click.option("--seconds", default=1.0, show_default=True, help="how long a turn takes at least")
@click.option("--stages", type=click.Choice(["2", "4"]), help="two or four stages alone")
@click.option("--print", "alone", is_flag=True, help="print the rows and leave the page as it is")
@click.option("--be", "told", hidden=True, help="be a process of a race")
@click.option("--target", hidden=True, help="where that tells what it found")
def main(names: tuple[str, ...], told: str | None, target: str | None, *, alone: bool, **options: Any) -> None:
    """Measure, and write the table between its marks on the page."""
    if told is not None and target is not None:
        found = be(*json.loads(told))
        if mp.world().rank == 0:
            Path(target).write_text(json.dumps(found))
        return
    lines = [HEAD]
    print(HEAD)
    for name in names or NAMES:
        for stages in [int(options["stages"])] if options["stages"] else ORDERS:
            made = rows(name, stages, options["micro_batches"], *raced(name, stages, options))
            print("\n".join(made), flush=True)
            lines += made
    if not alone and not names:
        write_table(PAGE, BEGIN, END, "\n".join(lines))


if __name__ == "__main__":
    main()
