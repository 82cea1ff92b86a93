"""The launches of a step of a graph, whose tasks are timed."""

from __future__ import annotations

from maniple.operators.expansion import Expansion
from maniple.operators.graph import Graph
from maniple.operators.optimizer import SGD
from maniple.operators.weight import weights
from maniple.runtime.launch import Launch
from maniple.runtime.machine import Machine
from maniple.runtime.region_table import RegionTable
from maniple.strategies.data_parallel import DataParallel
from maniple.strategies.strategy import Problem

MACHINE = Machine.preset("cpu:2x1")
LAUNCH_NS = round(1e9 * MACHINE.processor(0).launch_s)


def launches(graph: Graph) -> dict[str, Launch]:
    plan = DataParallel().plan(Problem(graph, MACHINE))
    table, optimizer = RegionTable(), SGD(lr=0.1)
    held = weights(graph, plan, MACHINE, optimizer, table)
    return {
        launch.name: launch for launch in Expansion(graph, plan, MACHINE, held, table).training_step(optimizer).launches
    }
