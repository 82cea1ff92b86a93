"""A lower bound on the step time of every plan for a graph on a machine.

No plan is faster than

    work    all tasks, if every processor were always busy and nothing were split
    path    the longest chain of launches that need each other, each as short as its smallest possible part

A task takes launch + max(operations / rate, bytes / bandwidth). Cutting an operator divides its operations and, at
best, its bytes, and adds a launch for each part: so the parts together take no less than the whole, and a part with a
share s of the operator takes no less than launch + s (whole - launch).

    linear, b=4 on 4 processors, whole 9 us, launch 1 us      work 9 us / 4      path 1 us + 8 us / 4
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.operators.optimizer import SGD
from maniple.runtime.roofline import bandwidth, task_ns
from maniple.strategies.placement import complete, whole
from maniple.strategies.simulation.step import StepLaunches
from maniple.strategies.space import OperatorSpace
from maniple.strategies.strategy import Problem

if TYPE_CHECKING:
    from maniple.operators.graph import Graph
    from maniple.runtime.launch import Launch
    from maniple.runtime.machine import Machine

__all__: list[str] = []

NS = 1e-9


def lower_bound_s(graph: Graph, machine: Machine) -> float:
    """Seconds below which no plan can go, by the roofline of the machine's processors.

    Args:
        graph: the graph; it must have a loss.
        machine: the machine.
    """
    count = len(machine.processors)
    shares = {node.name: _least_share(OperatorSpace(graph.bound(node).factors, count)) for node in graph.nodes}
    launch_ns = min(processor.launch_s for processor in machine.processors) / NS
    work = longest = 0.0
    ends: dict[int, float] = {}
    for launches in zip(*(whole_step(graph, machine, processor) for processor in _kinds(machine)), strict=True):
        first = launches[0]
        name, _, part = first.name.rpartition(".")
        if name not in shares and part != "update":
            continue  # what brings inputs in and results out
        whole_ns = min(float(task_ns(launch, 0, machine)) for launch in launches)
        work += whole_ns
        span = min(whole_ns, launch_ns + shares.get(name, 0.0) * (whole_ns - launch_ns))
        begin = max((ends.get(r.region.id, 0.0) for r in first.requirements if r.privilege.reads), default=0.0)
        for requirement in first.requirements:
            if requirement.privilege.writes or requirement.privilege.op is not None:
                region = requirement.region.id
                ends[region] = max(ends.get(region, 0.0), begin + span)
        longest = max(longest, begin + span)
    return max(work / count, longest) * NS


def _kinds(machine: Machine) -> tuple[int, ...]:
    """One processor of each kind that differs in what decides a task's time."""
    found: dict[tuple[float, float, float], int] = {}
    for processor in machine.processors:
        found.setdefault((processor.flops_per_s, processor.launch_s, bandwidth(machine, processor)), processor.id)
    return tuple(found.values())


def whole_step(graph: Graph, machine: Machine, processor: int) -> tuple[Launch, ...]:
    """The launches of a step that one processor computes alone."""
    operators = tuple((node.name, whole(graph, node, processor)) for node in graph.nodes)
    plan = complete(Problem(graph, machine), "whole", operators)
    return StepLaunches(graph, plan, machine, SGD(lr=0.1, momentum=0.9)).program.launches


def _least_share(space: OperatorSpace) -> float:
    """The share of an operator that its smallest part has, over all ways to cut it."""
    least = 1.0
    for degrees, _ in space.splits():
        share = 1.0
        for degree, factor in zip(degrees, space.factors, strict=True):
            share *= (factor.extent // degree) / factor.extent
        least = min(least, share)
    return least
