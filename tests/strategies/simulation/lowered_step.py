"""Training steps that are drawn, simulated, and lowered as the runtime does."""

from __future__ import annotations

from random import Random

from maniple.models import model
from maniple.operators.graph.graph import Graph
from maniple.operators.lowering.expansion import training_step
from maniple.operators.lowering.step_program import FragmentCache, Program
from maniple.operators.plan.plan import Plan
from maniple.operators.training.descent import SGD
from maniple.runtime.analysis.schedule_builder import ScheduleBuilder
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.schedule import Schedule
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


def lowered(graph: Graph, machine: Machine, plan: Plan) -> tuple[Schedule, int]:
    """The schedule that the runtime would run, and its makespan by the simulation that orders it."""
    program = expanded(graph, machine, plan)
    cache = FragmentCache(machine)
    fragments = [cache.fragment(key) for key in program.keys(machine)]
    composer = ScheduleBuilder(machine, program.launches, program.regions(), fragments)
    schedule = composer.compose()
    _, begin = composer.order(schedule.successors)
    return schedule, int((begin + composer.durations).max())


def assert_as_lowered(simulation: Simulation) -> None:
    schedule, makespan = lowered(simulation.graph, simulation.machine, simulation.plan)
    assert simulation.makespan_ns == makespan
    assert schedule.memory_bytes() == dict(enumerate(simulation.memory_bytes.tolist()))
