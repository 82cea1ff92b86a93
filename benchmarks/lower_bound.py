"""The lower bound against the times of plans: graphs of all kinds of operators, drawn by number, and plans of each.

    python benchmarks/lower_bound.py --graphs 1000

A graph has up to seven operators: layers, convolutions and pools of every stride and dilation, slices, splits, pads,
concatenations, gathers, norms, attention, recurrent cells and whatever else the lists below name. A machine has up to
32 processors, alike or not. Of each graph the named plans are simulated, random ones (uneven splits, replicas, more
parts than processors, weights at home anywhere), and what a walk from the fastest of them finds. Prints the greatest
share of the fastest plan's time that the bound has: none may be above 1.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from math import prod
from random import Random
from statistics import median

import maniple as mp
from maniple.operators.operator.builder import Tensor
from maniple.operators.rules.configuration import OperatorPlan
from maniple.strategies.bound import lower_bound_s
from maniple.strategies.interface.registry import STRATEGIES
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.simulation.simulation import Simulation

MACHINES = ("cpu:1", "cpu:2", "cpu:2x1", "cpu:8", "p100x2", "p100x8", "k80x2", "h100x2", "h100x32")

Step = Callable[[mp.Graph, Tensor, Random], Tensor]


def _window(chance: Random, side: int) -> dict[str, int]:
    """A window that fits: often with a stride above its kernel."""
    kernel = chance.choice([1, 1, 2, 3])
    dilation = chance.choice([1, 1, 2])
    if dilation * (kernel - 1) + 1 > side:
        kernel = dilation = 1
    return {"kernel_size": kernel, "stride": chance.choice([1, 2, 3, 7]), "dilation": dilation}


def _convolved(g: mp.Graph, x: Tensor, chance: Random) -> Tensor:
    window = _window(chance, min(x.shape[2:]))
    return g.conv2d(x, chance.choice([1, 3, 16]), **window, padding=chance.choice([0, window["kernel_size"] - 1]))


def _transposed(g: mp.Graph, x: Tensor, chance: Random) -> Tensor:
    return g.conv_transpose2d(x, chance.choice([1, 4]), chance.choice([1, 3]), stride=chance.choice([1, 2, 4]))


def _pooled(g: mp.Graph, x: Tensor, chance: Random) -> Tensor:
    if min(x.shape[2:]) < 2:
        return g.adaptive_avg_pool(x, (1, 1))
    pool = chance.choice([g.max_pool2d, g.avg_pool2d])
    return pool(x, 2, stride=chance.choice([1, 2, 5]))


def _attended(g: mp.Graph, x: Tensor, chance: Random) -> Tensor:
    del chance
    return g.scaled_dot_product_attention(x, x, x)


def _celled(g: mp.Graph, x: Tensor, chance: Random) -> Tensor:
    width = chance.choice([2, 64])
    hidden = g.linear(x, width)
    if chance.random() < 0.5:
        return g.gru_cell(x, hidden)
    return chance.choice(g.lstm_cell(x, (hidden, g.linear(x, width))))


def _joined(g: mp.Graph, x: Tensor, chance: Random) -> Tensor:
    axis = chance.randrange(len(x.shape))
    other = chance.choice([x, g.relu(x), g.relu(g.relu(g.relu(x)))])
    return g.concat(chance.choice([[x, other], [other, x], [other, other]]), axis) if axis else g.add(x, other)


def _cut(g: mp.Graph, x: Tensor, chance: Random) -> Tensor:
    axis = chance.randrange(1, len(x.shape))
    extent = x.shape[axis]
    start = chance.randrange(extent)
    stop = chance.randint(start + 1, extent)
    if chance.random() < 0.3 and extent > 1:
        return chance.choice(list(g.split(x, max(1, extent // 2), axis)))
    return g.slice(x, axis, start, stop, chance.choice([1, 2, 3]))


def _padded(g: mp.Graph, x: Tensor, chance: Random) -> Tensor:
    return g.pad(x, [chance.choice([0, 1, 9]), chance.choice([0, 1, 9])])


def _gathered(g: mp.Graph, x: Tensor, chance: Random) -> Tensor:
    axis = len(x.shape) - 1
    shape = (*x.shape[:axis], chance.choice([1, x.shape[axis], 2 * x.shape[axis]]))
    return g.gather(x, axis, g.input(f"index{len(g.nodes)}", shape, dtype="int64"))


def _normed(g: mp.Graph, x: Tensor, chance: Random) -> Tensor:
    if len(x.shape) == 4 and chance.random() < 0.6:
        return g.batch_norm(x) if chance.random() < 0.7 else g.group_norm(x, 1)
    return chance.choice([g.layer_norm, g.rms_norm])(x, x.shape[-1])


def _pointwise(g: mp.Graph, x: Tensor, chance: Random) -> Tensor:
    kind = chance.choice(["relu", "dropout", "softmax", "log_softmax", "skip"])
    if kind == "skip":
        return g.add(x, g.relu(x))
    if kind in {"softmax", "log_softmax"}:
        return getattr(g, kind)(x, chance.randrange(1, len(x.shape)))
    return g.dropout(x, 0.5) if kind == "dropout" else g.relu(x)


def _layered(g: mp.Graph, x: Tensor, chance: Random) -> Tensor:
    return g.linear(x, chance.choice([2, 5, 256, 2048]))


ANY: tuple[Step, ...] = (_joined, _cut, _padded, _gathered, _normed, _pointwise, _layered)
IMAGE: tuple[Step, ...] = (*ANY, _convolved, _convolved, _convolved, _transposed, _pooled, _pooled, _attended)
FLAT: tuple[Step, ...] = (*ANY, _celled, _layered)


def drawn(seed: int) -> tuple[mp.Graph, mp.Machine]:
    """The graph and the machine of a number."""
    chance = Random(seed)
    graph = mp.Graph(f"drawn{seed}")
    batch = chance.choice([1, 3, 4, 32, 256])
    if chance.random() < 0.6:
        side = chance.choice([3, 8, 33, 129])
        x = graph.input("x", (batch, chance.choice([1, 3, 8]), side, chance.choice([side, 5])))
    elif chance.random() < 0.3:
        x = graph.embedding(graph.input("x", (batch,), dtype="int64"), 50, chance.choice([4, 256]))
    else:
        x = graph.input("x", (batch, chance.choice([4, 64, 1024])))
    for _ in range(chance.randint(1, 5)):
        made = chance.choice(IMAGE if len(x.shape) == 4 else FLAT)(graph, x, chance)
        x = made if prod(made.shape) <= 1 << 24 else x
    x = graph.flatten(x) if len(x.shape) > 2 else x
    y = graph.input("y", (batch,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(x, chance.choice([2, 10])), y))
    return graph, _machine(chance)


def _machine(chance: Random) -> mp.Machine:
    """A preset, one time in four with processors and memories that are not alike."""
    machine = mp.Machine.preset(chance.choice(MACHINES))
    if chance.random() < 0.75:
        return machine
    faster = {"flops_per_s": [0.3, 1.0, 3.0], "launch_s": [0.0, 1.0, 2.0]}
    processors = tuple(
        replace(one, **{name: getattr(one, name) * chance.choice(factors) for name, factors in faster.items()})
        for one in machine.processors
    )
    memories = tuple(replace(one, bandwidth=one.bandwidth * chance.choice([0.25, 1.0])) for one in machine.memories)
    return replace(machine, processors=processors, memories=memories)


def finely_cut(graph: mp.Graph, machine: mp.Machine, chance: Random) -> dict[str, OperatorPlan]:
    """A random configuration of one operator: up to 64 parts, on some processors in turn."""
    node = chance.choice(graph.nodes)
    count, parts, degrees = len(machine.processors), 1, {}
    factors = graph.bound(node).factors
    for factor in chance.sample(factors, len(factors)):
        most = min(factor.highest_degree, 64 // parts)
        degrees[factor.name] = chance.choice([1, most, chance.randint(1, most)])
        parts *= degrees[factor.name]
    used = chance.sample(range(count), chance.choice([1, min(2, count), count]))
    named = tuple((factor.name, degrees[factor.name]) for factor in factors)
    return {node.name: OperatorPlan(named, tuple(used[part % len(used)] for part in range(parts)))}


def fastest_s(graph: mp.Graph, machine: mp.Machine, seed: int, proposals: int = 40) -> float:
    """The time of the fastest of some plans of a graph."""
    chance = Random(seed)
    problem = Problem(graph, machine)
    plans = [STRATEGIES.lookup(name)().plan(problem) for name in ("data_parallel", "model_parallel")]
    plans += [STRATEGIES.lookup("random")().plan(replace(problem, seed=seed * 8 + number)) for number in range(3)]
    simulations = [Simulation(graph, machine, plan) for plan in plans]
    simulation = min(simulations, key=lambda one: one.makespan_ns)
    for _ in range(proposals):
        before = simulation.makespan_ns
        if simulation.propose(finely_cut(graph, machine, chance)) <= before:
            simulation.accept()
        else:
            simulation.reject()
    return simulation.makespan_ns * 1e-9


def share(seed: int, proposals: int = 40) -> float:
    """The bound's share of the time of the fastest plan that was found for a number's graph."""
    graph, machine = drawn(seed)
    return lower_bound_s(graph, machine) / fastest_s(graph, machine, seed, proposals)


def main() -> None:
    """Print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="The number of the first graph.")
    asked = parser.parse_args()
    found = [(share(seed), seed) for seed in range(asked.first, asked.first + asked.graphs)]
    shares = sorted(one for one, _ in found)
    told = {"graphs": len(shares), "least": shares[0], "median": median(shares), "greatest": shares[-1]}
    print(json.dumps({**told, "greatest_of": max(found)[1], "above_1": [seed for one, seed in found if one > 1]}))


if __name__ == "__main__":
    main()
