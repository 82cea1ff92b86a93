"""The resident set of a process that trains: imports, compiled code, weights and steps, beside torch's eager mode.

    python benchmarks/resident_set.py                 all models; writes the table into docs/performance.md
    python benchmarks/resident_set.py --print gpt     some, and prints their rows alone

Each side is a process of its own with one thread, which imports what it needs, makes the module, and trains a few steps
with momentum: torch, a trainer that trains the module itself as torch does (`in_place`), and one that leaves the module
with what it began with. Told is the most that the process ever had resident, as the system counts it (`ru_maxrss`),
files that are mapped included. The first process of an installation also compiles, and is left out. It needs Linux.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import click
import torch
from page_table import write_table
from training.models import RACES, Race

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- benchmarks/resident_set.py: begin -->", "<!-- benchmarks/resident_set.py: end -->"
HEAD = (
    "| model | samples | torch MiB | Maniple, in place | above | of torch | Maniple, module as it was | above |\n"
    "|---|---|---|---|---|---|---|---|"
)
SIDES = ("torch", "in place", "apart")
STEPS = 4
RATE = 0.01


def train_eagerly(race: Race) -> None:
    """Train by torch."""
    module, (x, y) = race.module(), race.data(race.batch)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.9, fused=True)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = module(x, y)
        loss.backward()
        optimizer.step()


def train_by_tasks(race: Race, *, in_place: bool) -> None:
    """Train an import of the same module."""
    import maniple as mp

    module, (x, y) = race.module(), race.data(race.batch)
    graph = mp.from_torch(module, (x, y))
    plan = mp.search(graph, mp.Machine.preset("cpu:1"), strategy="data_parallel")
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=RATE, momentum=0.9), in_place=in_place) as trainer:
        for _ in range(STEPS):
            trainer.step(x, y)


def most_of(name: str, side: str) -> int:
    """The most that a process of one side had resident, in MiB."""
    found = subprocess.run([sys.executable, __file__, "--be", side, name], check=True, capture_output=True, text=True)
    return int(found.stdout)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*RACES]))
@click.option("--print", "alone", is_flag=True, help="print the rows and leave the page as it is")
@click.option("--be", "side", type=click.Choice(SIDES), hidden=True, help="be a process of one side")
def main(names: tuple[str, ...], side: str | None, *, alone: bool) -> None:
    """Measure, and write the table between its marks on the page."""
    if side is not None:
        torch.set_num_threads(1)
        race = RACES[names[0]]
        train_eagerly(race) if side == "torch" else train_by_tasks(race, in_place=side == "in place")
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        return
    lines = [HEAD]
    print(HEAD)
    for name in names or RACES:
        most_of(name, "apart")  # compiles what is not yet
        torchs, ours, apart = (most_of(name, each) for each in SIDES)
        row = f"| {name} | {RACES[name].batch} | {torchs} | {ours} | {ours - torchs} | {ours / torchs:.2f} "
        row += f"| {apart} | {apart - torchs} |"
        print(row, flush=True)
        lines.append(row)
    if not alone and not names:
        write_table(PAGE, BEGIN, END, "\n".join(lines))


if __name__ == "__main__":
    main()
