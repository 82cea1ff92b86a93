"""The frontier of time and memory: how long its search takes, how large it is, and that it is what brute force finds.

    python benchmarks/frontier.py                              # seven models on v100x8 and v100x16
    python benchmarks/frontier.py --models gpt --machines v100x8 --simulate 64
    python benchmarks/frontier.py --deep 96 --machines v100x64 # a GPT of so many layers
    python benchmarks/frontier.py --graphs 500                 # random graphs against brute force

`search_s` is from the graph to the frontier of the additive model, over degrees, replicas and homes of weights, with
compiled code loaded; `model_s` of it is for the tables of costs, `solve_s` for the frontier. Beside seconds by the
clock are those that the processors of this process worked (`work_s`), which other programs disturb less. `rss_mib` is
the most memory that the process has had so far.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np

import maniple as mp
from maniple.models import model
from maniple.strategies.elimination.variable_elimination import Table, begin, finish
from maniple.strategies.frontier import pareto
from maniple.strategies.frontier.algebra import reduce
from maniple.strategies.frontier.frontiers import Frontiers
from maniple.strategies.frontier.pareto import Pareto
from maniple.strategies.interface.strategy import Problem

MODELS = ("vgg16", "wide_resnet", "rnnlm", "transformer", "gpt", "resnet101", "inception_v3")
MACHINES = ("v100x8", "v100x16")


def search(name: str, graph: mp.Graph, machine: str, simulated: int) -> dict[str, object]:
    """Search one graph; gives a row of figures."""
    pareto.SIMULATED = max(2, simulated)
    strategy = Pareto()
    began, worked = time.perf_counter(), time.process_time()
    state = strategy.init(Problem(graph, mp.Machine.preset(machine)))
    state = strategy.step(state)
    tables_s = time.perf_counter() - began
    state = strategy.step(state)
    search_s, work_s = time.perf_counter() - began, time.process_time() - worked
    if state.solution is None:
        raise RuntimeError("the second step of the strategy gives the frontier of the model")
    row: dict[str, object] = {
        "model": name,
        "machine": machine,
        "operators": len(graph.nodes),
        "choices": max(map(len, state.choices)),
        "points": len(state.solution.points),
        "epsilon": state.solution.epsilon,
        "inexact": len(state.solution.inexact),
        "gap": state.solution.gap,
        "model_s": round(tables_s, 2),
        "solve_s": round(search_s - tables_s, 2),
        "search_s": round(search_s, 2),
        "work_s": round(work_s, 2),
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    if simulated:
        began = time.perf_counter()
        while not strategy.terminate(state):
            state = strategy.step(state)
        found = strategy.frontier(state)
        row |= {
            "simulate_s": round(time.perf_counter() - began, 1),
            "simulated": len(state.simulated),
            "kept": len(found),
            "time_tau": found.time_correlation,
            "memory_tau": found.memory_correlation,
            "least_gib": round(min(point.peak_memory_bytes for point in found) / 2**30, 3),
            "least_ms": round(1e3 * min(point.step_s for point in found), 3),
        }
    return row


def brute_force(graphs: int) -> dict[str, object]:
    """Compare the frontiers of random graphs of up to 8 operators of up to 4 choices with all assignments."""
    wrong = assignments = unreached = 0
    for seed in range(graphs):
        chance = np.random.default_rng(seed)
        sizes = chance.integers(1, 5, chance.integers(1, 9)).tolist()
        count = len(sizes)
        scopes: list[tuple[int, ...]] = [(number,) for number in range(count)]
        if count > 1:
            ends = chance.integers(0, count, (chance.integers(0, 2 * count), 2))
            scopes += [(int(min(pair)), int(max(pair))) for pair in ends if pair[0] != pair[1]]
        if count > 2 and chance.integers(2):
            scopes.append((0, count // 2, count - 1))  # a weight that three share
        semiring, tables = Frontiers(), []
        memory, ticks = np.zeros(sizes, dtype=np.int64), np.zeros(sizes, dtype=np.int64)
        for scope in scopes:
            costs = chance.integers(0, 1000, (2, *(sizes[operator] for operator in scope)))
            tables.append(Table(scope, semiring.given(costs[0], costs[1], -1)))
            shape = [sizes[operator] if operator in scope else 1 for operator in range(count)]
            memory, ticks = memory + costs[0].reshape(shape), ticks + costs[1].reshape(shape)
        (end,) = finish(begin(semiring, sizes, tables, 10**7), 1)
        found = semiring.points(semiring.product(end.closed))
        kept = reduce(memory.reshape(-1), ticks.reshape(-1))
        wanted = memory.reshape(-1)[kept], ticks.reshape(-1)[kept]
        assignments += memory.size
        wrong += not all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))
        unreached += sum(not _reached(*wanted, place) for place in range(len(kept)))
    return {"graphs": graphs, "assignments": assignments, "wrong": wrong, "points_no_weighted_sum_reaches": unreached}


def _reached(memory: np.ndarray, ticks: np.ndarray, place: int) -> bool:
    """Whether some weights of memory and ticks are least at a point of a frontier."""
    if place in {0, len(memory) - 1}:
        return True
    before = (ticks[:place] - ticks[place]) / (memory[place] - memory[:place])
    after = (ticks[place] - ticks[place + 1 :]) / (memory[place + 1 :] - memory[place])
    return bool(before.min() >= after.max())


def main() -> None:
    """Print a row for each model and machine, and one JSON object with all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--machines", nargs="*", default=MACHINES)
    parser.add_argument("--simulate", type=int, default=0, help="points to simulate; 0: none")
    parser.add_argument("--deep", type=int, default=0, help="a GPT of so many layers instead of the models")
    parser.add_argument("--graphs", type=int, default=0, help="random graphs to compare with brute force instead")
    asked = parser.parse_args()
    if asked.graphs:
        print(json.dumps(brute_force(asked.graphs)))
        return
    Pareto().load_compiled()
    graphs: dict[str, mp.Graph] = {} if asked.deep else {name: model(name) for name in asked.models}
    if asked.deep:
        graphs[f"gpt, {asked.deep} layers"] = model("gpt", layers=asked.deep)
    rows = []
    for name, graph in graphs.items():
        for machine in asked.machines:
            rows.append(search(name, graph, machine, asked.simulate))
            print(*(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
