"""Training steps that are planned and lowered without being run, for laws that can be judged on the schedule."""

from __future__ import annotations

from collections.abc import Iterator

from trained_networks import NETWORKS, OPTIMIZER

import maniple as mp
from maniple.operators.lowering.expansion import training_step
from maniple.operators.lowering.step_program import FragmentCache, Program, lower
from maniple.runtime.schedule.schedule import Schedule

NAMED = ("data_parallel", "expert", "model_parallel", "spatial")

# One rank to four, with one to four processors each; the last has two ranks on each of two nodes.
MACHINES = (
    mp.Machine.cpu(1),
    mp.Machine.cpu(3),
    mp.Machine.cpu(1, ranks=2),
    mp.Machine.cpu(2, ranks=2),
    mp.Machine.cpu(1, ranks=3),
    mp.Machine.cpu(3, ranks=2),
    mp.Machine.cpu(1, ranks=4),
    mp.Machine.cpu(1, ranks=4, nodes=2),
)


def program(graph: mp.Graph, plan: mp.Plan, machine: mp.Machine) -> Program:
    """The launches of a training step; a smaller batch is one more ``with_batch`` away."""
    return training_step(graph, plan, machine, OPTIMIZER)


def lowered(graph: mp.Graph, plan: mp.Plan, machine: mp.Machine) -> Schedule:
    """The schedule of a training step."""
    return lower(program(graph, plan, machine), FragmentCache(machine))


def plans(
    seeds: int, first: int = 0, machines: tuple[mp.Machine, ...] = MACHINES
) -> Iterator[tuple[str, mp.Graph, mp.Plan, mp.Machine]]:
    """Every network under every named strategy, and under random plans, each on one of the machines in turn.

    Args:
        seeds: how many random plans for each network.
        first: the first seed.
        machines: to choose from.
    """
    turn = first
    for name in ("digits", "mlp13", "residual"):
        graph = NETWORKS[name].graph("float32")
        drawn = [(strategy, 0) for strategy in NAMED] + [("random", first + seed) for seed in range(seeds)]
        for strategy, seed in drawn:
            machine = machines[turn % len(machines)]
            turn += 1
            label = f"{name}, {strategy} {seed}, {described(machine)}"
            plan = mp.search(graph, machine, strategy=strategy, seed=seed)
            yield label, graph, plan, machine
            small = graph.with_batch(NETWORKS[name].last)
            yield f"{label}, smaller batch", small, plan.for_graph(small), machine


def described(machine: mp.Machine) -> str:
    """A machine in words for a test's name."""
    return f"{len(machine.processors)} processors, {len(machine.memories)} ranks, {len(machine.hosts)} nodes"
