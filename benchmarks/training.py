"""Steps of training, raced against torch's own ways: five imported models on one processor and on two.

    python benchmarks/training.py                          all models; writes the table into docs/performance.md
    python benchmarks/training.py --print gpt lstm         some, and prints their rows alone
    python benchmarks/training.py --samples 8 --print      small steps: what a runtime costs
    python benchmarks/training.py --compile --print        beside torch.compile: both compiled

Sides take turns in one run: each trains the same module on the same batch for so many steps that a turn takes a while,
and every figure is a median over rounds. On one processor all have one thread. On two, ranks are two processes of one
core; torch's eager mode has both cores and two threads, in the first of them, and so has Maniple with one processor of
two cores. The plan of `auto` is searched for so many seconds, in which bodies are measured. What torch compiles, for
either side, it compiles before the first turn, for the threads that its side has; how long that took is told.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
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

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- benchmarks/training.py: begin -->", "<!-- benchmarks/training.py: end -->"
HEAD = "| model | samples | processors | side | ms per step | speed, of torch's best |\n|---|---|---|---|---|---|"
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
Sides = dict[str, Callable[[], float]]
TRAINERS = ExitStack()
"""What is closed when a race is over."""


def optimizer_of(kind: str) -> Any:
    """The optimizer of the race."""
    return mp.optim.AdamW(lr=RATE / 10) if kind == "adamw" else mp.SGD(lr=RATE, momentum=0.9)


def trainer_step(
    race: Race,
    samples: int,
    optimizer: str,
    plan_of: Callable[[mp.Graph], mp.Plan],
    world: World | None,
    *,
    compiled: bool = False,
) -> Step:
    """A step of an imported module under a plan."""
    x, y = race.data(samples)
    graph = mp.from_torch(race.module(), (x, y))
    made = mp.Trainer(graph, plan_of(graph), optimizer=optimizer_of(optimizer), world=world, compile=compiled)
    trainer = TRAINERS.enter_context(made)
    return lambda: trainer.step(x, y)


def one_processor(race: Race, samples: int, optimizer: str, *, compiled: bool) -> Sides:
    """The sides of one processor, with those that torch compiles."""
    machine = mp.Machine.preset("cpu:1")

    def whole(graph: mp.Graph) -> mp.Plan:
        return mp.search(graph, machine, strategy="data_parallel")

    sides: Sides = {
        "torch": torch_modes.eager(race, samples, optimizer, fused=False),
        "torch, fused": torch_modes.eager(race, samples, optimizer, fused=True),
        "Maniple": trainer_step(race, samples, optimizer, whole, World.solo(cores=1)),
    }
    if compiled:
        sides["torch, compiled"] = torch_modes.eager(race, samples, optimizer, fused=True, compiled=True)
        sides["Maniple, compiled"] = trainer_step(race, samples, optimizer, whole, World.solo(cores=1), compiled=True)
    return sides


def found(strategy: str, budget: float = 0.0, semantics: dict[str, str] | None = None) -> Callable[[mp.Graph], mp.Plan]:
    """What searches a plan for both processors: in so many seconds, in which bodies are measured, or at once."""
    machine = mp.Machine.detect()

    def search(graph: mp.Graph) -> mp.Plan:
        if not budget:
            return mp.search(graph, machine, strategy=strategy, semantics=semantics)
        began = time.perf_counter()
        plan = mp.search(graph, machine, strategy=strategy, budget=budget, seed=0, costs="measured")
        if mp.world().rank == 0:
            terms = "".join(f", {term} {value}" for term, value in dict(plan.explanation)[""])
            print(f"{strategy} of {budget:g} s took {time.perf_counter() - began:.1f} s{terms}", file=sys.stderr)
        return plan

    return search


def both_cores(step: Callable[[], Step]) -> Step:
    """A step of one process with both cores, in the first; it does nothing in the second."""
    if mp.world().rank:
        return lambda: 0.0
    with torch_modes.spread_over(CORES, len(CORES)):
        made = step()

    def run() -> float:
        with torch_modes.spread_over(CORES, len(CORES)):
            return made()

    return run


def on_both_cores(race: Race, samples: int, optimizer: str, *, compiled: bool = False) -> Step:
    """A step of Maniple's with one processor of two cores."""

    def whole(graph: mp.Graph) -> mp.Plan:
        return mp.search(graph, mp.Machine.preset("cpu:1"), strategy="data_parallel")

    world = World.solo(cores=len(CORES))
    return both_cores(lambda: trainer_step(race, samples, optimizer, whole, world, compiled=compiled))


def two_processors(race: Race, samples: int, optimizer: str, budget: float) -> Sides:
    """The sides of two processes of one core each; what is of one process alone does nothing in the second."""
    sides = {
        "torch, two threads, fused": both_cores(lambda: torch_modes.eager(race, samples, optimizer, fused=True)),
        "torch, DDP": torch_modes.data_parallel(race, samples, optimizer),
        "torch, FSDP2": torch_modes.sharded(race, samples, optimizer),
        "torch, 1F1B of two stages": torch_modes.pipelined(race, samples, optimizer, "1f1b", 4, 2),
        "Maniple, data parallel": trainer_step(race, samples, optimizer, found("data_parallel"), None),
        "Maniple, auto": trainer_step(race, samples, optimizer, found("auto", budget), None),
        "Maniple, one processor of two cores": on_both_cores(race, samples, optimizer),
    }
    if any(isinstance(module, torch.nn.BatchNorm2d) for module in race.module().modules()):
        local = found("data_parallel", semantics={"batch_norm": "local_stats"})  # what DDP trains
        sides["Maniple, data parallel, local statistics"] = trainer_step(race, samples, optimizer, local, None)
    return sides


def two_compiled(race: Race, samples: int, optimizer: str, budget: float) -> Sides:
    """The sides of two processes that torch compiles, and torch's two eager ones that come nearest.

    torch sums gradients of a compiled module once its backward has ended (DDP of a compiled module), or compiles
    backward in parts, as many as there are sums (compiled DDP).
    """
    plain = trainer_step(race, samples, optimizer, planned := once(found("auto", budget)), None)
    return {
        "torch, two threads, fused": both_cores(lambda: torch_modes.eager(race, samples, optimizer, fused=True)),
        "torch, DDP": torch_modes.data_parallel(race, samples, optimizer),
        "torch, two threads, compiled": both_cores(
            lambda: torch_modes.eager(race, samples, optimizer, fused=True, compiled=True)
        ),
        "torch, DDP of a compiled module": torch_modes.data_parallel(race, samples, optimizer, compiled="module"),
        "torch, compiled DDP": torch_modes.data_parallel(race, samples, optimizer, compiled="whole"),
        "torch, FSDP2, compiled": torch_modes.sharded(race, samples, optimizer, compiled=True),
        "Maniple, auto": plain,
        "Maniple, data parallel, compiled": trainer_step(
            race, samples, optimizer, found("data_parallel"), None, compiled=True
        ),
        "Maniple, auto, compiled": trainer_step(race, samples, optimizer, planned, None, compiled=True),
        "Maniple, one processor of two cores, compiled": on_both_cores(race, samples, optimizer, compiled=True),
    }


def once(search: Callable[[mp.Graph], mp.Plan]) -> Callable[[mp.Graph], mp.Plan]:
    """A search that is made for the first graph, and gives further ones, of the same module, the same plan."""
    plans: list[mp.Plan] = []

    def plan_of(graph: mp.Graph) -> mp.Plan:
        if not plans:
            plans.append(search(graph))
        return plans[0]

    return plan_of


def be(name: str, processors: int, options: dict[str, Any]) -> dict[str, list[float]]:
    """Be a process of one race."""
    torch.set_num_threads(1)
    race = RACES[name]
    samples = options["samples"] or race.batch
    rounds, seconds, optimizer = options["rounds"], options["seconds"], options["optimizer"]
    if processors == 1:
        with TRAINERS:
            sides = one_processor(race, samples, optimizer, compiled=options["compile"])
            return torch_modes.race_of(sides, rounds, seconds, lambda number: number)
    world = mp.world()
    address = f"tcp://127.0.0.1:{options['port']}"
    dist.init_process_group("gloo", init_method=address, rank=world.rank, world_size=world.size)

    def meet(number: int) -> int:
        given = world.control.gather(str(number).encode())
        return int(given[0])

    with TRAINERS:
        made = two_compiled if options["compile"] else two_processors
        sides = made(race, samples, optimizer, options["budget"])
        found = torch_modes.race_of(sides, rounds, seconds, meet)
    dist.destroy_process_group()
    return found


def raced(name: str, processors: int, options: dict[str, Any]) -> dict[str, list[float]]:
    """Start the processes of one race, and read what the first found."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        target = Path(folder) / "found.json"
        free.bind(("127.0.0.1", 0))
        told = {**options, "port": free.getsockname()[1]}
        free.close()
        own = [__file__, "--be", json.dumps([name, processors, told]), "--target", str(target)]
        launch = ["-m", "maniple.cli", "run", "--nodes", "2", "--cores", "1"] if processors == 2 else []
        if launch and options["compile"]:
            launch.append("--compile")  # `auto` races plans as they will run
        subprocess.run([sys.executable, *launch, *own], check=True, stdout=subprocess.DEVNULL)
        found: dict[str, list[float]] = json.loads(target.read_text())
        return found


def rows(name: str, processors: int, samples: int, times: dict[str, list[float]]) -> list[str]:
    """A row for each side: its median, and what it does of the best of torch's, over rounds."""
    medians = {side: statistics.median(values) for side, values in times.items()}
    best = min((side for side in times if side.startswith("torch")), key=medians.__getitem__)
    lines = []
    for side, values in times.items():
        ratio = statistics.median(a / b for a, b in zip(times[best], values, strict=True))
        lines.append(f"| {name} | {samples} | {processors} | {side} | {medians[side]:.2f} | {ratio:.2f} |")
    return lines


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*RACES]))
@click.option("--processors", type=click.Choice(["1", "2"]), help="one of the two tables alone")
@click.option("--samples", default=0, help="samples of a step; by default the model's own number")
@click.option("--optimizer", type=click.Choice(["sgd", "adamw"]), default="sgd", show_default=True)
@click.option("--rounds", default=7, show_default=True, help="figures are medians over them")
@click.option("--seconds", default=1.0, show_default=True, help="how long a turn takes at least")
@click.option("--budget", default=30.0, show_default=True, help="seconds for auto's search, measuring included")
@click.option("--compile", is_flag=True, help="the sides that torch compiles")
@click.option("--print", "alone", is_flag=True, help="print the rows and leave the page as it is")
@click.option("--be", "told", hidden=True, help="be a process of a race")
@click.option("--target", hidden=True, help="where that tells what it found")
def main(names: tuple[str, ...], told: str | None, target: str | None, *, alone: bool, **options: Any) -> None:
    """Measure, and write the table between its marks on the page."""
    if told is not None and target is not None:
        name, processors, given = json.loads(told)
        found = be(name, processors, given)
        if processors == 1 or mp.world().rank == 0:
            Path(target).write_text(json.dumps(found))
        return
    lines = [HEAD]
    print(HEAD)
    for name in names or RACES:
        for processors in [int(options["processors"])] if options["processors"] else (1, 2):
            samples = options["samples"] or RACES[name].batch
            made = rows(name, processors, samples, raced(name, processors, options))
            print("\n".join(made), flush=True)
            lines += made
    if not alone and not names:
        write_table(PAGE, BEGIN, END, "\n".join(lines))


if __name__ == "__main__":
    main()
