"""The simulator's speed: rows per second, proposals against rebuilding, and a thousand devices.

    python benchmarks/simulator.py [--model inception_v3] [--devices 16 64] [--proposals 200] [--json FILE]

Times are of this thread, so other work on the computer disturbs little; compare ratios, not runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import maniple as mp
from maniple.models import model
from maniple.operators.graph.graph import Graph
from maniple.operators.plan.plan import Plan
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.order import first_come
from maniple.strategies.interface.registry import STRATEGIES
from maniple.strategies.interface.space import Space
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.simulation.compilation import compile_all
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap.soap import Soap

CLOCK = time.thread_time


def convnet(layers: int, batch: int) -> Graph:
    """A stack of convolutions with a branch in every block, about as many rows a layer as Inception-v3 has."""
    g = mp.Graph("convnet")
    x, y = g.input("x", (batch, 16, 32, 32)), g.input("y", (batch,), dtype="int64")
    h = x
    for _ in range(layers):
        left = g.relu(g.conv2d(h, out_channels=16, kernel_size=3, padding=1))
        right = g.relu(g.conv2d(h, out_channels=16, kernel_size=1))
        h = g.add(left, right)
    g.loss(g.cross_entropy(g.linear(g.flatten(h), out_features=10), y))
    return g


def planned(graph: Graph, machine: Machine, strategy: str, seed: int = 0) -> Plan:
    """A plan by a named strategy."""
    chosen = STRATEGIES.lookup(strategy)()
    return chosen.result(chosen.step(chosen.init(Problem(graph, machine, seed=seed))))


def timed(call: Callable[[], object], runs: int) -> float:
    """The median seconds of a call, after one that does not count."""
    call()
    found = []
    for _ in range(runs):
        begun = CLOCK()
        call()
        found.append(CLOCK() - begun)
    return statistics.median(found)


def full_rates(graph: Graph, machine: Machine) -> dict[str, float]:
    """Rows per second of a full simulation."""
    duration, held, successors, lanes = Simulation(graph, machine, planned(graph, machine, "data_parallel")).columns()
    rows = len(duration)
    return {"rows": rows, "rows_per_s": rows / timed(lambda: first_come(duration, held, successors, lanes), 50)}


def delta_against_rebuild(graph: Graph, machine: Machine, count: int) -> dict[str, float]:
    """Milliseconds of a proposal of a search, all of it, and of a rebuild with warm caches and a full simulation."""
    strategy = Soap()
    state = strategy.init(Problem(graph, machine))
    proposals: list[float] = []
    while len(proposals) < count:
        before, begun = strategy.progress(state).proposals, CLOCK()
        state = strategy.step(state)
        took = CLOCK() - begun
        if strategy.progress(state).proposals > before:
            proposals.append(took)
    plan = strategy.result(state)
    simulation = Simulation(graph, machine, plan)
    rebuild = timed(lambda: Simulation(graph, machine, plan, cache=simulation.cache), 3)
    duration, held, successors, lanes = simulation.columns()
    full = timed(lambda: first_come(duration, held, successors, lanes), 20)
    return {
        "rows": len(duration),
        "proposal_ms": 1e3 * statistics.median(proposals),
        "mean_proposal_ms": 1e3 * statistics.fmean(proposals),
        "accepted": strategy.progress(state).accepted,
        "rebuild_ms": 1e3 * rebuild,
        "full_ms": 1e3 * full,
        "speed_up": (rebuild + full) / statistics.median(proposals),
    }


def one_operator(graph: Graph, machine: Machine, count: int) -> dict[str, float]:
    """Milliseconds of a proposal that redraws one operator, from data parallelism on; kept if it is 1 % longer or less.

    Nothing is known of most of them, as in a search: what an operator's split and its regions come to is found first.
    """
    simulation = Simulation(graph, machine, planned(graph, machine, "data_parallel"))
    space, chance = Space.of(graph, len(machine.processors)), Random(7)
    took: list[float] = []
    kept = 0
    for _ in range(count):
        place = chance.randrange(len(space.names))
        own, limit = space.operators[place], int(simulation.makespan_ns * (1 + 0.01 * chance.expovariate(1.0)))
        change = {space.names[place]: own.plan(own.draw(chance))}
        begun = CLOCK()
        if simulation.propose(change, limit_ns=limit) <= limit:
            simulation.accept()
            kept += 1
        else:
            simulation.reject()
        took.append(CLOCK() - begun)
    return {"median_ms": 1e3 * statistics.median(took), "mean_ms": 1e3 * statistics.fmean(took), "kept": kept}


def thousand(layers: int) -> dict[str, float]:
    """Seconds to lower and simulate a step on 1,024 devices, with compiled code warm."""
    graph, machine = convnet(layers, 1024), Machine.preset("h100x1024")
    plan = planned(graph, machine, "data_parallel")
    begun = CLOCK()
    simulation = Simulation(graph, machine, plan)
    return {"rows": len(simulation.columns()[0]), "lower_and_simulate_s": CLOCK() - begun}


def main() -> None:
    """Measure, and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="inception_v3")
    parser.add_argument("--layers", type=int, default=20, help="of the network on 1,024 devices")
    parser.add_argument("--proposals", type=int, default=200)
    parser.add_argument("--devices", type=int, nargs="*", default=[16, 64])
    parser.add_argument("--skip-thousand", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    result: dict[str, object] = {"model": given.model, "layers": given.layers}
    compile_all()
    graph = model(given.model)
    for devices in given.devices:
        machine = Machine.preset(f"p100x{devices}")
        result[f"full_{devices}"] = full_rates(graph, machine)
        result[f"one_operator_{devices}"] = one_operator(graph, machine, given.proposals)
        result[f"delta_{devices}"] = delta_against_rebuild(graph, machine, given.proposals)
    if not given.skip_thousand:
        result["devices_1024"] = thousand(given.layers)
    for name, values in result.items():
        if isinstance(values, dict):
            print(name, "  ".join(f"{key} {value:,.3f}" for key, value in values.items()))
    if given.json is not None:
        given.json.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
