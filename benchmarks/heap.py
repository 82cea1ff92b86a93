"""What it costs to have freed memory cleared in every step: the same steps with the C library's own heap, and kept.

    python benchmarks/heap.py

Each side is a program of its own on one core, and the two take turns. The side that keeps nothing is told so as a user
would tell it, by a variable of glibc's.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time

from accuracy_models import wide
from batch import batch_of

import maniple as mp
from maniple.models import model
from maniple.operators.graph.graph import Graph

SIDES = {"the C library's": {"GLIBC_TUNABLES": "glibc.malloc.check=0"}, "kept": {}}
ROUNDS, WARM_UP, STEPS = 3, 3, 10
GRAPHS = {
    "wide": lambda: wide(32),
    "resnet18": lambda: model("resnet18", batch=16, image=32),
    "vgg16": lambda: model("vgg16", batch=16, image=32),
    "mlp": lambda: model("mlp", batch=128),
}


def step(graph: Graph) -> tuple[float, float]:
    """Milliseconds and page faults of a step, the middle and the mean of STEPS."""
    batch, took = batch_of(graph), []
    machine = mp.Machine.detect()
    plan = mp.search(graph, machine, strategy="data_parallel")
    with mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.01, momentum=0.9)) as trainer:
        for _ in range(WARM_UP):
            trainer.step(**batch)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(STEPS):
            begun = time.perf_counter()
            trainer.step(**batch)
            took.append(time.perf_counter() - begun)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return 1e3 * statistics.median(took), faults / STEPS


def main() -> None:
    """Measure all models, or be one side of one."""
    if len(sys.argv) > 1:
        print(*step(GRAPHS[sys.argv[1]]()))
        return
    print("| model | heap | ms a step | page faults a step |\n|---|---|---|---|")
    for name in GRAPHS:
        found: dict[str, list[list[float]]] = {side: [] for side in SIDES}
        for _ in range(ROUNDS):
            for side, variables in SIDES.items():
                command = [sys.executable, "-m", "maniple.cli", "run", "--nodes", "1", "--cores", "1", __file__, name]
                done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True)
                found[side].append([float(word) for word in done.stdout.split()[-2:]])
        for side, runs in found.items():
            took, faults = (statistics.median(column) for column in zip(*runs, strict=True))
            print(f"| {name} | {side} | {took:.1f} | {faults:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
