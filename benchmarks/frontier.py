"""The frontier of time and memory: how long its search takes, how large it is, and that it is what brute force finds.

    python benchmarks/frontier.py                              # seven models on v100x8 and v100x16
    python benchmarks/frontier.py --models gpt --machines v100x8 --simulate 64
    python benchmarks/frontier.py --deep 96 --machines v100x64 # a GPT of so many layers
    python benchmarks/frontier.py --space recompute stages      # ... with results computed again and pipelines
    python benchmarks/frontier.py --fastest --llama 32 --machines h100x64   # the fastest plan alone, and its bound
    python benchmarks/frontier.py --graphs 500                 # random graphs against brute force
    python benchmarks/frontier.py --calls vgg16 --machines v100x8   # Python calls of prices, at once and one by one

`search_s` is from the graph to the frontier of the additive model, over degrees, replicas and homes of weights, with
compiled code loaded; `model_s` of it is for the tables of costs, `solve_s` for the frontier. Beside seconds by the
clock are those that the processors of this process worked (`work_s`), which other programs disturb less. `rss_mib` is
the most memory that the process has had so far.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from unittest.mock import patch

import numpy as np

import maniple as mp
from maniple.models import model
from maniple.strategies.elimination.variable_elimination import Table, begin, finish
from maniple.strategies.frontier import pareto
from maniple.strategies.frontier.additive_memory import AdditiveMemory
from maniple.strategies.frontier.additive_model import model_of_times
from maniple.strategies.frontier.algebra import reduce
from maniple.strategies.frontier.frontiers import Frontiers
from maniple.strategies.frontier.full_split import full_splits
from maniple.strategies.frontier.gap_search import LARGEST
from maniple.strategies.frontier.own_price import OwnPrices, single_price
from maniple.strategies.frontier.pareto import Pareto
from maniple.strategies.frontier.stage_search import Staged
from maniple.strategies.frontier.weighted_sum import WeightedSums
from maniple.strategies.interface.space import Space
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.optcnn.additive_cost import AdditiveCost

MODELS = ("vgg16", "wide_resnet", "rnnlm", "transformer", "gpt", "resnet101", "inception_v3")
MACHINES = ("v100x8", "v100x16")


def search(name: str, graph: mp.Graph, machine: str, simulated: int, space: tuple[str, ...] = ()) -> dict[str, object]:
    """Search one graph; gives a row of figures."""
    with patch.object(pareto, "SIMULATED", max(2, simulated)):
        return _row(name, graph, machine, simulated, space)


def _row(name: str, graph: mp.Graph, machine: str, simulated: int, space: tuple[str, ...]) -> dict[str, object]:
    strategy = Pareto()
    began, worked = time.perf_counter(), time.process_time()
    state = strategy.init(Problem(graph, mp.Machine.preset(machine), space=space))
    state = strategy.step(state)
    tables_s = time.perf_counter() - began
    state = strategy.step(state)
    while state.left:
        state = strategy.step(state)
    search_s, work_s = time.perf_counter() - began, time.process_time() - worked
    if state.solution is None:
        raise RuntimeError("the second step of the strategy gives the frontier of the model")
    row: dict[str, object] = {
        "model": name,
        "machine": machine,
        "operators": len(graph.nodes),
        "choices": max(map(len, state.choices)),
        "points": len(state.points),
        "epsilon": state.solution.epsilon,
        "inexact": len(state.solution.inexact),
        "pipelines": sum(isinstance(point, Staged) for point in state.points),
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


def fastest(name: str, graph: mp.Graph, machine: str) -> dict[str, object]:
    """The fastest assignment of the model, which is a bound for all of them if no operator kept a choice."""
    began, worked = time.perf_counter(), time.process_time()
    state = Pareto().init(Problem(graph, mp.Machine.preset(machine)))
    times = model_of_times(state.problem, state.space, state.choices)
    tables_s = time.perf_counter() - began
    sums = WeightedSums(times, LARGEST)
    found, bound = sums.least((0.0, 1.0))
    return {
        "model": name,
        "machine": machine,
        "operators": len(graph.nodes),
        "choices": max(map(len, state.choices)),
        "model_ms": found.ticks / 1e6,
        "bound_ms": bound / 1e6,
        "inexact": len(sums.inexact),
        "model_s": round(tables_s, 2),
        "search_s": round(time.perf_counter() - began, 2),
        "work_s": round(time.process_time() - worked, 2),
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def calls(graph: mp.Graph, machine: str) -> dict[str, int]:
    """How many Python functions are called to price all operators at once, and each choice by itself."""
    problem = Problem(graph, mp.Machine.preset(machine))
    space = Space.of(graph, len(problem.machine.processors))
    choices = [full_splits(space, number) for number in range(len(space.names))]
    counted = {}
    for name in ("at once", "one by one"):
        cost = AdditiveCost(problem, space, choices, at_once=name == "at once")
        memory = AdditiveMemory(cost.tables)
        prices, count, kinds = OwnPrices(cost, memory), [0], dict[int, int]()
        for number in range(len(choices)):
            kinds.setdefault(cost.kind(number), number)

        def seen(frame: object, event: str, what: object, count: list[int] = count) -> None:
            del frame, what
            count[0] += event in {"call", "c_call"}

        sys.setprofile(seen)
        for number in kinds.values():
            if name == "at once":
                prices.price(number)
            else:
                single_price(cost, memory, number)
        sys.setprofile(None)
        counted[name] = count[0]
        counted["prices"] = sum(len(choices[number]) for number in kinds.values())
    return counted


def llama(layers: int) -> mp.Graph:
    """A decoder like Llama-3-8B, of some of its layers: 64 texts of 2,048 words."""
    from dataclasses import replace

    from language_models import LLAMA, decoder

    return decoder("llama", replace(LLAMA, layers=layers), 64, 2048)


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
    parser.add_argument("--space", nargs="*", default=(), help="what is chosen besides: recompute, stages, cube")
    parser.add_argument("--fastest", action="store_true", help="the fastest assignment of the model alone")
    parser.add_argument("--llama", type=int, default=0, help="so many layers of a Llama-3-8B instead of the models")
    parser.add_argument("--calls", default="", help="count Python calls of prices for a model instead")
    parser.add_argument("--graphs", type=int, default=0, help="random graphs to compare with brute force instead")
    asked = parser.parse_args()
    if asked.graphs:
        print(json.dumps(brute_force(asked.graphs)))
        return
    Pareto().load_compiled()
    if asked.calls:
        print(json.dumps({machine: calls(model(asked.calls), machine) for machine in asked.machines}))
        return
    graphs: dict[str, mp.Graph] = {} if asked.deep or asked.llama else {name: model(name) for name in asked.models}
    if asked.deep:
        graphs[f"gpt, {asked.deep} layers"] = model("gpt", layers=asked.deep)
    if asked.llama:
        graphs[f"llama, {asked.llama} layers"] = llama(asked.llama)
    rows = []
    for name, graph in graphs.items():
        for machine in asked.machines:
            if asked.fastest:
                rows.append(fastest(name, graph, machine))
            else:
                rows.append(search(name, graph, machine, asked.simulate, tuple(asked.space)))
            print(*(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
