"""Training steps that are drawn, simulated, and lowered as the runtime does."""

from __future__ import annotations

from random import Random

import numpy as np

from maniple.models import model
from maniple.operators.graph.graph import Graph
from maniple.operators.lowering.expansion import training_step
from maniple.operators.lowering.step_program import FragmentCache, Program
from maniple.operators.plan.plan import Plan
from maniple.operators.training.descent import SGD
from maniple.runtime.analysis.schedule_builder import ScheduleBuilder
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.network import Column
from maniple.runtime.schedule.schedule import RowKind, Schedule, csr
from maniple.strategies.interface.registry import STRATEGIES
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.simulation.simulation import Simulation

OPTIMIZER = SGD(lr=0.1, momentum=0.9)

MACHINES = ("cpu:2", "cpu:2x1", "cpu:2x2", "cpu:3x2", "p100x4", "p100x6", "k80x8", "v100x3")
NAMES = ("random", "random", "random", "data_parallel", "expert", "model_parallel", "spatial")


def planned(graph: Graph, machine: Machine, strategy: str, seed: int) -> Plan:
    chosen = STRATEGIES.lookup(strategy)()
    return chosen.result(chosen.step(chosen.init(Problem(graph, machine, seed=seed))))


def drawn(seed: int) -> tuple[Random, Graph, Machine, Plan]:
    chance = Random(seed)
    machine = Machine.preset(chance.choice(MACHINES))
    graph = model(chance.choice(["digits_cnn", "mlp"]), batch=chance.choice([8, 12, 64]))
    return chance, graph, machine, planned(graph, machine, chance.choice(NAMES), seed)


def expanded(graph: Graph, machine: Machine, plan: Plan) -> Program:
    return training_step(graph, plan, machine, OPTIMIZER)


def turns(schedule: Schedule) -> list[tuple[int, int]]:
    """The tasks that a processor takes one after the other, whoever is ready: (row, the next one of its processor)."""
    last: dict[int, int] = {}
    found = []
    for row, (kind, launch, processor) in enumerate(
        zip(schedule.kind, schedule.launch, schedule.processor, strict=True)
    ):
        if kind == RowKind.TASK and schedule.launches[launch].in_turn:
            if processor in last:
                found.append((last[processor], row))
            last[processor] = row
    return found


def timed(graph: Graph, machine: Machine, plan: Plan) -> tuple[Schedule, Column, Column]:
    """The schedule that the runtime would run, what its rows take, and when they begin by the rule that orders them."""
    program = expanded(graph, machine, plan)
    cache = FragmentCache(machine)
    fragments = [cache.fragment(key) for key in program.keys(machine)]
    composer = ScheduleBuilder(machine, program.launches, program.regions(), fragments)
    schedule = composer.compose()
    starts, waits = schedule.successors
    pairs = np.stack([np.repeat(np.arange(len(schedule)), np.diff(starts)), waits], axis=1)
    edges = np.concatenate([pairs, np.asarray(turns(schedule), dtype=np.int64).reshape(-1, 2)])
    _, begin = composer.order(csr(len(schedule), edges))
    return schedule, composer.durations, begin


def lowered(graph: Graph, machine: Machine, plan: Plan) -> tuple[Schedule, int]:
    """The schedule that the runtime would run, and its makespan by the simulation that orders it."""
    schedule, durations, begin = timed(graph, machine, plan)
    return schedule, int((begin + durations).max())


def assert_as_lowered(simulation: Simulation) -> None:
    schedule, makespan = lowered(simulation.graph, simulation.machine, simulation.plan)
    assert simulation.makespan_ns == makespan
    assert schedule.memory_bytes() == dict(enumerate(simulation.memory_bytes.tolist()))
