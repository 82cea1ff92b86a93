"""Predicted steps beside measured ones, after the device was calibrated: ten models and plans, some of two ranks on it.

    PYTHONPATH=src python benchmarks/gpu_prediction.py            a line of JSON for each, and one for all
    PYTHONPATH=src python benchmarks/gpu_prediction.py --device null --small       a rehearsal

What is measured first is what ``maniple calibrate --device cuda`` measures: rates, the host's share, and what a hop
between two ranks adds. Then the tasks of each plan are timed, and only then does it run. ``gpu_checks.py`` has this as
its check of predictions; ranks are threads here as there, and share the device.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from gpu_steps import SGD, Bench, Line, made, median, on, tried

import maniple as mp
from maniple.costs import open_timer
from maniple.gpu_probe import probe
from maniple.link_probe import hops
from maniple.runtime.control.world import World
from maniple.strategies.cost_model.calibration import GpuRates, calibrate_gpus, fit_link
from maniple.strategies.cost_model.measured import Measured
from maniple.strategies.cost_model.measurement import Measurements, step_bytes
from maniple.strategies.simulation.simulation import Simulation

MEDIAN, WORST = 0.08, 0.20
"""The errors that are wanted at most."""
BOX_S, LAST_S = 5.0, 50.0
"""Seconds in which the tasks of one case are timed (others are interpolated), and after which no case begins."""


class Case(NamedTuple):
    """A model and a plan.

    Args:
        net: of ``gpu_networks.nets``.
        size: 0 for the small batch, 1 for the large one.
        ranks: how many share the device.
        strategy: makes the plan.
        precision: of the plan's semantics.
    """

    net: str
    size: int
    ranks: int = 1
    strategy: str = "data_parallel"
    precision: str = "float32"


CASES = (
    *(Case("cnn", 0), Case("cnn", 1), Case("gpt", 0), Case("gpt", 1), Case("lstm", 1), Case("gpt", 1, 2)),
    *(Case("cnn", 1, 2), Case("cnn", 1, 2, "random"), Case("gpt", 1, precision="bf16")),
    *(Case("resnet18", 0), Case("resnet18", 1), Case("resnet50", 1)),
)
REHEARSED = (Case("cnn", 0), Case("gpt", 0), Case("cnn", 1, 2))


def prediction(bench: Bench) -> Iterator[Line]:
    """Calibrate, then predict and measure each case; the last line says how far off predictions are."""
    begun = time.monotonic()
    (found,) = on(bench, 1, probe)
    rates, one = found
    yield {"calibrated": "device", **asdict(rates), "took_s": time.monotonic() - begun}
    machines = {1: one, 2: _two(bench, rates)}
    within = machines[2].within_host
    link = {} if within is None else asdict(within)
    yield {"calibrated": "hop between ranks", **link, "took_s": time.monotonic() - begun}
    known, errors = Measurements.here(bench.device), []
    for case in REHEARSED if bench.small else CASES:
        if not bench.small and time.monotonic() - begun > LAST_S:
            yield {**case._asdict(), "skipped": "no time was left"}
            continue
        line = tried(case._asdict(), lambda case=case: _compare(bench, case, machines[case.ranks], known))  # type: ignore[misc]
        if "ratio" in line:
            errors.append(abs(line["ratio"] - 1))
        yield line
    if not errors:
        return
    middle, worst = statistics.median(errors), max(errors)
    yield {"cases": len(errors), "median": middle, "worst": worst, "met": middle <= MEDIAN and worst <= WORST}


def _two(bench: Bench, rates: GpuRates) -> mp.Machine:
    """The machine of two ranks that share the device, with what a hop between them adds."""
    machine, (sizes, seconds) = on(bench, 2, lambda world: (mp.Machine.detect(world), hops(world)))[0]
    return calibrate_gpus(machine, rates, fit_link(sizes, seconds))


def _compare(bench: Bench, case: Case, machine: mp.Machine, known: Measurements) -> Line:
    """A step as it is predicted, and as it takes."""
    net = bench.nets()[case.net]
    graph, batch, _ = made(net, net.sizes[case.size])
    semantics = {"precision": case.precision}
    plan = mp.search(graph, machine, strategy=case.strategy, seed=1, semantics=semantics)
    with open_timer(bench.device, machine) as timer:
        costs = Measured(machine, known, time_box_s=BOX_S, footprint=step_bytes(graph), timer=timer)
        predicted = Simulation(graph, machine, plan, costs, SGD).predict()

    def program(world: World) -> float:
        with mp.Trainer(graph, plan, optimizer=SGD, world=world) as trainer:
            for _ in range(3):
                trainer.step(*batch)
            return median(bench, lambda: trainer.step(*batch))

    taken = max(on(bench, case.ranks, program))
    seconds, sources = predicted.step_ns / 1e9, dict(predicted.sources)
    return {"predicted_s": seconds, "measured_s": taken, "ratio": seconds / taken, "sources": sources}


def main() -> int:
    """Run; the exit status is 1 where a case failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "null"), default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes of a rehearsal")
    given = parser.parse_args()
    failed = False
    for line in prediction(Bench(given.device, given.small, Path("unused"))):
        failed |= "error" in line
        print(json.dumps(line), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
