"""The simulator's truth: predicted against measured steps of many plans, here.

    python benchmarks/simulator_accuracy.py --machine here.toml [--model NAME ...] [--json FILE] [--plot FILE]

Run it on two idle cores, after `maniple calibrate -o here.toml`. Each of ten models (`accuracy_models`) is taken in
turn. First its plans are made: ten drawn by SEED, and those of named strategies and searches that differ from these.
Then this process times their tasks, as a search with measured costs does, and predicts their steps; only then two
one-core nodes are started, which train under each plan. So nothing of a prediction is known from the steps, from their
minute, or from their processes.

Prints relative errors; Kendall's tau over all pairs of plans whose middle rounds differ by more than the noise; and how
much longer the plan that is predicted fastest takes than the fastest.

A computer that is shared is not as fast in the minutes of the steps as in those of the tasks. So two one-core nodes do
a fixed piece of work before and after the tasks are timed, and in each round of the steps; the *drift* is how much
longer it takes with the steps. Errors are printed as they are, and with the drift divided out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import torch
from accuracy_models import graphs
from batch import batch_of
from ranking import kendall, middle, noise, over_fastest, over_luckiest, pairs

import maniple as mp
from maniple.operators.graph.graph import Graph
from maniple.operators.plan.plan import Plan
from maniple.runtime.machine.machine import Machine
from maniple.strategies.cost_model.measured import RUNOFF_PASSES, Measured
from maniple.strategies.cost_model.measurement import Measurements, step_bytes
from maniple.strategies.simulation.simulation import Simulation

SEED = 20261123
"""Of the plans that are drawn: the day on which these models were chosen. Plan i of each model has SEED + i."""
DRAWN = 10
NAMED, FOUND = ("data_parallel", "model_parallel", "expert", "spatial"), ("optcnn", "soap")
PROPOSALS = 2000
"""Of the searches, whose costs are the roofline's."""
WARM_UP, STEPS, ROUNDS = 2, 5, 9
TIME_BOX_S = 600.0
WORK_RUNS = 15
WANTED_MEDIAN, WANTED_WORST = 0.08, 0.25


@dataclass(frozen=True, slots=True)
class Row:
    """One plan: what a step of it was predicted to take, and what it took in each round."""

    model: str
    plan: str
    predicted_s: float
    rounds_s: list[float]
    drift: float

    @property
    def error(self) -> float:
        """How far off the prediction is, of what was measured; negative where the step took longer."""
        return self.predicted_s / middle(self.rounds_s) - 1

    @property
    def own_error(self) -> float:
        """The same of the steps that the computer would have made as fast as it was when the tasks were timed."""
        return self.predicted_s * self.drift / middle(self.rounds_s) - 1


def plans_of(graph: Graph, machine: Machine) -> dict[str, Plan]:
    """Drawn, named and found plans; of equal ones only the first."""
    drawn = ((f"drawn {seed}", mp.search(graph, machine, strategy="random", seed=SEED + seed)) for seed in range(DRAWN))
    named = ((name, mp.search(graph, machine, strategy=name)) for name in NAMED)
    found = ((name, mp.search(graph, machine, strategy=name, proposals=PROPOSALS, cores=1)) for name in FOUND)
    plans: dict[str, Plan] = {}
    for name, plan in chain(drawn, named, found):
        if all(plan.operators != other.operators for other in plans.values()):
            plans[name] = plan
    return plans


def predicted(graph: Graph, machine: Machine, plans: dict[str, Plan]) -> list[float]:
    """Seconds of a step of each plan, by tasks that are timed now and here."""
    costs = Measured(
        machine, Measurements.here(), time_box_s=TIME_BOX_S, passes=RUNOFF_PASSES, footprint=step_bytes(graph)
    )
    for plan in plans.values():
        Simulation(graph, machine, plan, costs)
    costs.settle()
    return [Simulation(graph, machine, plan, costs.freeze()).makespan_ns / 1e9 for plan in plans.values()]


def fixed_work() -> float:
    """Seconds that a convolution, a product and a copy of fixed sizes take here, the median of WORK_RUNS."""
    torch.set_num_threads(1)
    images, kernels, matrix = torch.rand(8, 64, 28, 28), torch.rand(64, 64, 3, 3), torch.rand(512, 512)
    source, target = torch.rand(1 << 22), torch.empty(1 << 22)
    times = []
    for _ in range(WORK_RUNS):
        begun = time.perf_counter()
        torch.conv2d(images, kernels, padding=1)
        torch.mm(matrix, matrix)
        target.copy_(source)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def measured(graph: Graph, plans: list[Plan]) -> list[list[float]]:
    """Seconds of a step of each plan, round by round; a round has STEPS steps of each, each waited for.

    Last come the seconds of the fixed work, one for each round.
    """
    batch = batch_of(graph)
    found: list[list[float]] = [[] for _ in plans]
    work: list[float] = []
    with ExitStack() as stack:
        optimizer = mp.SGD(lr=0.01, momentum=0.9)
        trainers = [stack.enter_context(mp.Trainer(graph, plan, optimizer=optimizer)) for plan in plans]
        for _ in range(ROUNDS):
            work.append(fixed_work())
            for rounds, trainer in zip(found, trainers, strict=True):
                times = []
                for _ in range(WARM_UP + STEPS):
                    begun = time.perf_counter()
                    trainer.step(**batch)
                    times.append(time.perf_counter() - begun)
                rounds.append(statistics.median(times[WARM_UP:]))
    return [*found, work]


def taken(name: str, plans: dict[str, Plan]) -> list[list[float]]:
    """What `measured` gives in two one-core nodes, which are started for it; without plans the fixed work alone."""
    with tempfile.TemporaryDirectory() as folder:
        for number, plan in enumerate(plans.values()):
            plan.save(Path(folder) / f"{number:03d}.json")
        command = [sys.executable, "-m", "maniple.cli", "run", "--nodes", "2", "--cores", "1", __file__]
        subprocess.run([*command, "--steps-of", folder, "--model", name], check=True)
        found: list[list[float]] = json.loads((Path(folder) / "rounds").read_text())
        return found


def serve(name: str, folder: Path) -> None:
    """What every rank of these nodes runs; rank 0 writes down what was measured."""
    plans = [Plan.load(file) for file in sorted(folder.glob("*.json"))]
    mp.world()  # where ranks wait for each other, so that both do the fixed work at once
    found = measured(graphs()[name], plans)
    if mp.world().rank == 0:
        (folder / "rounds").write_text(json.dumps(found))


def of_model(rows: list[Row]) -> dict[str, object]:
    """The figures of one model's plans: those that were asked for first, then what luck has no part in."""
    forecast, rounds = [row.predicted_s for row in rows], [row.rounds_s for row in rows]
    least = statistics.median(map(noise, rounds))
    return {
        "plans": len(rows),
        "noise": least,
        "median_error": statistics.median(abs(row.error) for row in rows),
        "worst_error": max(abs(row.error) for row in rows),
        "drift": rows[0].drift - 1,
        "median_own_error": statistics.median(abs(row.own_error) for row in rows),
        "worst_own_error": max(abs(row.own_error) for row in rows),
        "pairs": pairs(rounds, least, odd=ROUNDS),
        "kendall_tau": kendall(forecast, rounds, least, odd=ROUNDS),
        "chosen_over_fastest": over_luckiest(forecast, rounds),
        "span": max(map(middle, rounds)) / min(map(middle, rounds)),
        "pairs_told_apart": pairs(rounds, least),
        "kendall_tau_told_apart": kendall(forecast, rounds, least),
        "chosen_over_fastest_without_luck": over_fastest(forecast, rounds),
    }


def summary(rows: list[Row]) -> dict[str, object]:
    """The figures by model and over all."""
    result: dict[str, object] = {
        name: of_model([row for row in rows if row.model == name]) for name in dict.fromkeys(row.model for row in rows)
    }
    for kind, errors in (("error", [row.error for row in rows]), ("own_error", [row.own_error for row in rows])):
        result[f"median_{kind}"] = statistics.median(map(abs, errors))
        result[f"worst_{kind}"] = max(map(abs, errors))
    return {**result, "plans": len(rows)}


def table(found: dict[str, object]) -> str:
    """The figures as a table in Markdown."""
    errors = ("noise", "median_error", "worst_error", "drift", "median_own_error", "worst_own_error")
    columns = ("plans", *errors, "pairs", "kendall_tau", "chosen_over_fastest", "span")
    head = (
        "| model | plans | noise | median error | worst | drift | median without it | worst | pairs | tau "
        "| chosen / fastest | slowest / fastest |"
    )
    lines = [head, "|---|" + "---|" * len(columns)]
    for name, figures in found.items():
        if isinstance(figures, dict):
            cells = [
                "-" if figures[key] is None else f"{figures[key]:.1%}" if key in errors else f"{figures[key]:.4g}"
                for key in columns
            ]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(rows: list[Row], path: Path) -> None:
    """A picture of measured against predicted steps, with the lines of no error and of the worst that is wanted."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "maniple"  # the same rows give the same file
    figure = Figure(figsize=(5.2, 4.6), layout="tight")
    axes = figure.subplots()
    for name in dict.fromkeys(row.model for row in rows):
        mine = [row for row in rows if row.model == name]
        forecast, steps = [1e3 * row.predicted_s for row in mine], [1e3 * middle(row.rounds_s) for row in mine]
        axes.scatter(forecast, steps, s=14, label=name)
    ends = [1e3 * end(middle(row.rounds_s) for row in rows) for end in (min, max)]
    for off, style in ((0.0, "-"), (WANTED_WORST, ":"), (-WANTED_WORST, ":")):
        axes.plot([(1 + off) * end for end in ends], ends, style, color="grey", linewidth=0.8)
    axes.set(xlabel="predicted step, ms", ylabel="measured step, ms", xscale="log", yscale="log")
    axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Predict, measure, and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", type=Path, help="what `maniple calibrate -o` wrote; default: priors")
    parser.add_argument("--model", action="append", choices=list(graphs()), help="only these; may be repeated")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="write a picture (needs matplotlib)")
    parser.add_argument("--steps-of", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.steps_of is not None:
        serve(given.model[0], given.steps_of)
        return
    machine = Machine.cpu(1, ranks=2, cores=1) if given.machine is None else Machine.load(given.machine)
    rows: list[Row] = []
    for name, graph in graphs().items():
        if given.model and name not in given.model:
            continue
        plans = plans_of(graph, machine)
        before = taken(name, {})[-1]
        forecast = predicted(graph, machine, plans)
        after = taken(name, {})[-1]
        *steps, during = taken(name, plans)
        drift = middle(during) / statistics.fmean([middle(before), middle(after)])
        for plan, step_s, rounds in zip(plans, forecast, steps, strict=True):
            rows.append(Row(name, plan, step_s, rounds, drift))
            times = f"{1e3 * step_s:9.2f} ms predicted {1e3 * middle(rounds):9.2f} ms measured {rows[-1].error:+7.1%}"
            print(f"{name:12s} {plan:16s} {times}, drift {drift - 1:+.1%}: {rows[-1].own_error:+7.1%}", flush=True)
    found = summary(rows)
    print(table(found))
    print(json.dumps(found, indent=1))
    if given.json is not None:
        given.json.write_text(json.dumps({"summary": found, "rows": [asdict(row) for row in rows]}), encoding="utf-8")
    if given.plot is not None:
        draw(rows, given.plot)


if __name__ == "__main__":
    main()
