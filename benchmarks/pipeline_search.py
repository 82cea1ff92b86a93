"""Pipelines that searches choose, by the simulator, beside the fastest plan without one.

    python benchmarks/pipeline_search.py      prints the table of docs/explanation/antichain.md; nothing is timed

Stacks of LSTM layers, whose features cannot be split and whose weights are large beside their samples, and a VGG-16 on
images of 32 x 32, on one host with four GPUs and on four ranks of one core.
"""

from __future__ import annotations

import sys

import maniple as mp
from maniple.models import model
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.segmentation.antichain import Antichain
from maniple.strategies.segmentation.bapipe import BaPipe
from maniple.strategies.segmentation.finalists import TRIED, rivals
from maniple.strategies.segmentation.gpipe import GPipe
from maniple.strategies.segmentation.graphpipe import GraphPipe

HEAD = "| model | machine | without a pipeline | ms | antichain | ms | bapipe ms | graphpipe ms | gpipe ms |"


def layers(count: int, batch: int, width: int, steps: int) -> mp.Graph:
    """LSTM layers in a row."""
    g = mp.Graph(f"{count} LSTM layers, {width} wide, {batch} x {steps}")
    h = g.input("x", (batch, steps, width))
    for _ in range(count):
        h = g.lstm(h, width, batch_first=True)[0]
    g.loss(g.mse_loss(h, g.input("y", (batch, steps, width))))
    return g


def row(graph: mp.Graph, name: str, machine: str) -> str:
    """A row of the table."""
    problem = Problem(graph, mp.Machine.preset(machine))
    plan = Antichain().plan(problem)
    told = dict(dict(plan.explanation)[""])
    times = {rival.name: float(str(told[TRIED + rival.name])) for rival in rivals(problem, [])}
    whole = min(times, key=lambda each: times[each])
    others = [strategy.plan(problem).predicted.step_s or 0.0 for strategy in (BaPipe(), GraphPipe(), GPipe())]
    cells = [name, machine, whole, f"{times[whole] * 1e3:.3f}", str(told["found by"])]
    cells += [f"{step_s * 1e3:.3f}" for step_s in (plan.predicted.step_s or 0.0, *others)]
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    """Print the table."""
    print(HEAD, "|---" * 9 + "|", sep="\n")
    for count, batch, width, steps, machine in ((4, 8, 1024, 8, "p100x4"), (4, 16, 1024, 8, "cpu:4x1")):
        graph = layers(count, batch, width, steps)
        print(row(graph, graph.name, machine), flush=True)
    print(row(model("vgg16", batch=128, image=32, classes=10), "VGG-16, CIFAR-10 shapes, 128", "p100x4"), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
