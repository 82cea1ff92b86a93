"""The simulator's truth: predicted against measured steps of many plans, here.

    maniple run --nodes 2 --cores 1 benchmarks/simulator_accuracy.py --machine here.toml [--plans 8] [--json FILE]
        [--plot FILE]

Run it on two one-core processors with nothing else going on, after `maniple calibrate -o here.toml`. Every model is
trained under named and random plans; each task is measured on rank 0, and all ranks use those measurements. Prints
relative errors, Kendall's tau over pairs further apart than the noise, and how far the plan predicted fastest is from
the fastest (see `ranking`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import torch
from batch import batch_of
from ranking import kendall, middle, noise, over_fastest, over_luckiest, pairs

import maniple as mp
from maniple.models import model
from maniple.operators.graph import Graph
from maniple.operators.plan import Plan
from maniple.runtime.machine import Machine
from maniple.runtime.world import current
from maniple.strategies.cost_model.measured import Measured
from maniple.strategies.cost_model.measurement import Measurements, step_bytes
from maniple.strategies.simulation.simulation import Simulation

NAMED, FOUND = ("data_parallel", "model_parallel", "expert", "spatial"), ("optcnn", "soap")
PROPOSALS = 2000
"""Of the searches, whose costs are the roofline's."""
WARM_UP, STEPS, ROUNDS = 2, 5, 9
TIME_BOX_S = 600.0


def wide(batch: int) -> Graph:
    """Convolutions with many channels and few weights in the end."""
    g = mp.Graph("wide")
    x, y = g.input("x", (batch, 3, 32, 32)), g.input("y", (batch,), dtype="int64")
    h = g.relu(g.conv2d(x, out_channels=32, kernel_size=3, padding=1))
    h = g.relu(g.conv2d(h, out_channels=64, kernel_size=3, stride=2, padding=1))
    h = g.relu(g.conv2d(h, out_channels=64, kernel_size=3, stride=2, padding=1))
    g.loss(g.cross_entropy(g.linear(g.flatten(h), out_features=10), y))
    return g


def deep(batch: int) -> Graph:
    """Dense layers that get smaller."""
    g = mp.Graph("deep")
    x, y = g.input("x", (batch, 1024)), g.input("y", (batch,), dtype="int64")
    h = x
    for width in (1024, 1024, 512, 512, 256, 256, 128):
        h = g.relu(g.linear(h, out_features=width))
    g.loss(g.cross_entropy(g.linear(h, out_features=10), y))
    return g


def branched(batch: int) -> Graph:
    """Two branches that operators could share out."""
    g = mp.Graph("branched")
    x, y = g.input("x", (batch, 1024)), g.input("y", (batch,), dtype="int64")
    left, right = (g.relu(g.linear(x, out_features=1024)) for _ in range(2))
    g.loss(g.cross_entropy(g.linear(g.add(left, right), out_features=10), y))
    return g


GRAPHS = (model("digits_cnn", 256), model("mlp", 128), wide(32), deep(64), branched(128))


@dataclass(frozen=True, slots=True)
class Row:
    """One plan: what a step of it was predicted to take, and what it took in each round."""

    model: str
    plan: str
    predicted_s: float
    rounds_s: list[float]


def plans_of(graph: Graph, machine: Machine, count: int) -> dict[str, Plan]:
    """Named, found and random plans, the same ones on every rank; of equal ones only the first."""
    named = ((name, mp.search(graph, machine, strategy=name)) for name in NAMED)
    found = ((name, mp.search(graph, machine, strategy=name, proposals=PROPOSALS, cores=1)) for name in FOUND)
    drawn = ((f"random {seed}", mp.search(graph, machine, strategy="random", seed=seed)) for seed in range(count))
    plans: dict[str, Plan] = {}
    for name, plan in chain(named, found, drawn):
        if len(plans) < count and all(plan.operators != other.operators for other in plans.values()):
            plans[name] = plan
    return plans


def steps(graph: Graph, machine: Machine, plans: dict[str, Plan]) -> list[tuple[float, list[float]]]:
    """Seconds of a step of each plan: what is predicted on rank 0, and what each round measures.

    A round times every task once, alone, as a search does, and then STEPS steps of each plan, each waited for. A
    computer that is slower for a while is slower for all of them; predictions and steps of different minutes would
    differ by what else its host does.
    """
    footprint = step_bytes(graph)
    costs = Measured(machine, Measurements.here(), time_box_s=TIME_BOX_S, passes=ROUNDS, footprint=footprint)
    rank, batch = current().rank, batch_of(graph)
    found: list[list[float]] = [[] for _ in plans]
    with ExitStack() as stack:
        optimizer = mp.SGD(lr=0.01, momentum=0.9)
        trainers = [stack.enter_context(mp.Trainer(graph, plan, optimizer=optimizer)) for plan in plans.values()]
        for turn in range(ROUNDS):
            if rank == 0 and turn:  # while the others wait in a step
                costs.again()
            elif rank == 0:
                _ = [Simulation(graph, machine, plan, costs) for plan in plans.values()]
            for rounds, trainer in zip(found, trainers, strict=True):
                times = []
                for _ in range(WARM_UP + STEPS):
                    begun = time.perf_counter()
                    trainer.step(**batch)
                    times.append(time.perf_counter() - begun)
                rounds.append(statistics.median(times[WARM_UP:]))
    costs.settle()
    if rank:
        return [(0.0, rounds) for rounds in found]
    return [
        (Simulation(graph, machine, plan, costs).makespan_ns / 1e9, rounds)
        for plan, rounds in zip(plans.values(), found, strict=True)
    ]


def summary(rows: list[Row]) -> dict[str, object]:
    """The figures that the issue asks for, by model and over all."""
    result: dict[str, object] = {}
    for name in dict.fromkeys(row.model for row in rows):
        mine = [row for row in rows if row.model == name]
        predicted, measured = [row.predicted_s for row in mine], [row.rounds_s for row in mine]
        least = statistics.median(map(noise, measured))
        result[name] = {
            "plans": len(mine),
            "span": max(map(middle, measured)) / min(map(middle, measured)),
            "pairs": pairs(measured, least),
            "kendall_tau": kendall(predicted, measured, least),
            "kendall_tau_by_noise_alone": kendall(predicted, measured, least, odd=ROUNDS),
            "chosen_over_fastest": over_fastest(predicted, measured),
            "chosen_over_luckiest": over_luckiest(predicted, measured),
            "noise": least,
        }
    errors = [abs(row.predicted_s / middle(row.rounds_s) - 1) for row in rows]
    return {**result, "median_error": statistics.median(errors), "worst_error": max(errors)}


def draw(rows: list[Row], path: Path) -> None:
    """A picture of measured against predicted steps, with the lines of 0 and 30 % error."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "maniple"  # the same rows give the same file
    figure = Figure(figsize=(5.2, 4.6), layout="tight")
    axes = figure.subplots()
    for name in dict.fromkeys(row.model for row in rows):
        mine = [row for row in rows if row.model == name]
        axes.scatter(
            [1e3 * row.predicted_s for row in mine], [1e3 * middle(row.rounds_s) for row in mine], s=18, label=name
        )
    ends = [0.0, max(axes.get_xlim()[1], axes.get_ylim()[1])]
    for slope, style in ((1.0, "-"), (1.3, ":"), (0.7, ":")):
        axes.plot(ends, [slope * end for end in ends], style, color="grey", linewidth=0.8)
    axes.set(xlabel="predicted step, ms", ylabel="measured step, ms")
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, and print a table and JSON on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", type=Path, help="what `maniple calibrate -o` wrote; default: priors")
    parser.add_argument("--plans", type=int, default=10, help="plans of each model; at least a third are random")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="write a picture (needs matplotlib)")
    given = parser.parse_args()
    world = current()
    machine = Machine.detect() if given.machine is None else Machine.load(given.machine)
    rows: list[Row] = []
    for graph in GRAPHS:
        plans = plans_of(graph, machine, given.plans)
        for name, (predicted, rounds) in zip(plans, steps(graph, machine, plans), strict=True):
            rows.append(Row(graph.name, name, predicted, rounds))
            if world.rank == 0:
                times = f"{1e3 * predicted:9.2f} ms predicted {1e3 * middle(rounds):9.2f} ms measured"
                print(f"{graph.name:12s} {name:16s} {times}", flush=True)
    if world.rank == 0:
        result = {"summary": summary(rows), "rows": [asdict(row) for row in rows], "cores": torch.get_num_threads()}
        print(json.dumps(result["summary"], indent=1))
        if given.json is not None:
            given.json.write_text(json.dumps(result), encoding="utf-8")
        if given.plot is not None:
            draw(rows, given.plot)


if __name__ == "__main__":
    main()
