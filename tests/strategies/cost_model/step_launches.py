"""The launches of a step of a graph, whose tasks are timed."""

from __future__ import annotations

from maniple.operators.graph.graph import Graph
from maniple.operators.lowering.expansion import training_step
from maniple.operators.training.descent import SGD
from maniple.runtime.machine.machine import Machine
from maniple.runtime.schedule.launch import Launch
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.named.data_parallel import DataParallel

MACHINE = Machine.preset("cpu:2x1")
LAUNCH_NS = round(1e9 * MACHINE.processor(0).launch_s)


def launches(graph: Graph) -> dict[str, Launch]:
    plan = DataParallel().plan(Problem(graph, MACHINE))
    return {launch.name: launch for launch in training_step(graph, plan, MACHINE, SGD(lr=0.1)).launches}
