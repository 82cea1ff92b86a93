"""Spans: how long the launches of a step take at least, together and in the smallest part, however they are cut.

**Work.** A task takes launch + max(operations / rate, bytes / bandwidth). The parts of an operator compute its
operations together, and use together at least what each of its elements needs; each part has a launch of its own. So
they take no less than

    launch + max(operations / rate, bytes needed / bandwidth)

A window with a stride above its kernel steps over rows: the whole operator reads them, and its parts do not.

**The smallest part** of an operator is one element of every factor that can be split, whatever the processors are: a
plan may give a processor many parts.

Updates of weights, and assignments of buffers, that have the same users may be one launch
(`operators/lowering/fusion/fused_launch.py`): the first has the launch, and the others add what they do.

An operator that only gives its operand in another shape or order takes nothing where its result can be used where that
lies (`operators/lowering/view_group.py`), which some plan allows of each.

An operator whose split needs an exchange inside it is replaced by primitives where it is split, which may take less or
more than its fused body. Its work is that of the one or of the others, whichever is less, and in a chain it is one
launch each way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, final

from maniple.operators.lowering.composite import lower_composites
from maniple.operators.lowering.fusion.fused_launch import home_names, home_users
from maniple.operators.lowering.view_group import step_targets, view_groups
from maniple.operators.plan.plan import Plan
from maniple.operators.rules.configuration import OperatorPlan
from maniple.runtime.schedule.launch_columns import volumes_of
from maniple.runtime.schedule.roofline import WIDTHS, Rooflines, efficiency
from maniple.strategies.bound.whole_step import accesses, node_of, rule_of, whole_step
from maniple.strategies.interface.placement import whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maniple.operators.graph.graph import Graph
    from maniple.operators.training.optimizer import AbstractOptimizer
    from maniple.runtime.machine.machine import Machine
    from maniple.runtime.schedule.launch import Launch
    from maniple.strategies.bound.access import Access

__all__: list[str] = []

NS = 1e-9
Way = tuple[str, bool]
"""The operator of a launch, and whether the launch is a forward one."""


@final
@dataclass(frozen=True)
class Rates:
    """The best that any processor of a machine reaches.

    Args:
        launch_ns: nanoseconds of a launch. A task's time is rounded: half a nanosecond may be missing.
        flops_per_ns: the peak, in the type of the graph's that is fastest.
        bytes_per_ns: the bandwidth.
    """

    launch_ns: float
    flops_per_ns: float
    bytes_per_ns: float

    @classmethod
    def of(cls, graph: Graph, machine: Machine) -> Rates:
        """The best rates of a machine for a graph."""
        processors, reached = machine.processors, Rooflines.of(machine)
        types = {"float32"} | {tensor.dtype for tensor in graph.tensors if tensor.dtype in WIDTHS}
        types |= {node.operator.multiplies_in or "float32" for node in graph.nodes}
        return cls(
            max(0.0, min(processor.launch_s for processor in processors) / NS - 0.5),
            max(processor.peak(dtype) for processor in processors for dtype in sorted(types)) * NS,
            float(max(rates.max() for rates in (reached.bandwidth, *reached.buses.values()))) * NS,
        )

    def task_ns(self, launch: Launch, flops: float, touched: float) -> float:
        """Nanoseconds that a task of a launch takes at least, or the parts of it together."""
        busy = max(flops / (efficiency(launch.kind) * self.flops_per_ns), touched / self.bytes_per_ns)
        # Where nothing is launched, times below a nanosecond and a half are rounded by up to a third.
        return self.launch_ns + (busy if self.launch_ns else busy * 2 / 3)


@final
@dataclass(frozen=True)
class Span:
    """A launch of the step and how long it takes at least, in nanoseconds.

    Args:
        launch: the launch as one processor runs it whole.
        work: the time of all its parts.
        least: the time of its smallest part.
        free: whether it may take nothing, however it is cut.
    """

    launch: Launch
    work: float
    least: float
    free: bool = False

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """What its parts use."""
        return accesses(self.launch)

    @property
    def way(self) -> Way:
        """Whose launch it is, and which way."""
        name, _, part = self.launch.name.rpartition(".")
        return name, part == "forward"


def spans(graph: Graph, machine: Machine, optimizer: AbstractOptimizer) -> list[Span]:
    """The launches of a step, in program order; of arrivals and of the fetch one launch, wherever they are."""
    rates = Rates.of(graph, machine)
    users, led = home_users(graph), set[object]()
    found = []
    for launch in whole_step(graph, machine, 0, optimizer):
        name = next(iter(home_names(launch)), None)
        leader = name is None or (type(launch.binder), users[name]) not in led
        if name is not None:
            led.add((type(launch.binder), users[name]))
        found.append(_span(launch, rates) if leader else _following(launch, rates))
    replaced = _replaced_ns(graph, machine, rates, optimizer)
    viewed = {
        graph.nodes[node].name
        for group in view_groups(graph, step_targets(graph, training=True))
        for node in group.nodes
    }
    found = [replace(span, work=0.0, least=0.0, free=True) if span.way[0] in viewed else span for span in found]
    fused: dict[Way, float] = {}
    for span in found:
        fused[span.way] = fused.get(span.way, 0.0) + span.work
    return [
        replace(span, work=span.work * min(1.0, replaced[span.way] / fused[span.way]), least=rates.launch_ns)
        if span.way in replaced
        else span
        for span in found
    ]


def _span(launch: Launch, rates: Rates) -> Span:
    """A launch as its operator's rule lets it be cut."""
    node, used = node_of(launch), accesses(launch)
    if node is None and not launch.kind:  # an arrival, a fetch, an assignment
        return Span(launch, rates.launch_ns, rates.launch_ns)
    flops = launch.flops[0] if launch.flops else 0.0
    parts = 1 if node is None else _parts(launch)
    work = rates.task_ns(launch, flops, sum(access.together_bytes for access in used))
    least = rates.task_ns(launch, 0.0 if node is None else flops / parts, sum(access.least_bytes for access in used))
    return Span(launch, work, min(work, least))


def _following(launch: Launch, rates: Rates) -> Span:
    """An update or assignment that may be one launch with another of its kind: what it adds at least."""
    if not launch.kind:
        return Span(launch, 0.0, 0.0)
    own = sum(volumes_of(need.rects)[0] * need.region.itemsize for need in launch.requirements[:2])
    busy = min(launch.flops[0] / (efficiency(launch.kind) * rates.flops_per_ns), own / rates.bytes_per_ns)
    return Span(launch, busy * (1.0 if rates.launch_ns else 2 / 3), 0.0)


def _parts(launch: Launch) -> int:
    """The parts of the finest split of a launch's operator."""
    bound = rule_of(launch)
    return 1 if bound is None else prod(factor.highest_degree for factor in bound.factors)


def _replaced_ns(graph: Graph, machine: Machine, rates: Rates, optimizer: AbstractOptimizer) -> Mapping[Way, float]:
    """What the primitives of each operator that has an exchange take together, each way."""
    split: dict[str, OperatorPlan] = {}
    for node in graph.nodes:
        exchanged = node.operator.exchanges()
        factor = next((f.name for f in graph.bound(node).factors if f.name in exchanged and f.highest_degree > 1), None)
        if factor is not None:
            degrees = tuple((f.name, 2 if f.name == factor else 1) for f in graph.bound(node).factors)
            split[node.name] = OperatorPlan(degrees, (0, 0))
    if not split:
        return {}
    operators = tuple((node.name, split.get(node.name, whole(graph, node, 0))) for node in graph.nodes)
    made, _ = lower_composites(graph, Plan("", "", operators, ()), training=True)
    owners = {node.name: node.name.rpartition(".")[0] for node in made.nodes if node.name not in dict(operators)}
    found = {(name, forward): 0.0 for name in split for forward in (True, False)}
    for launch in whole_step(made, machine, 0, optimizer):
        name, _, part = launch.name.rpartition(".")
        if name in owners:
            found[owners[name], part == "forward"] += _span(launch, rates).work
    return found


def regions_written(used: Sequence[Access]) -> list[Access]:
    """The accesses that write or reduce."""
    return [access for access in used if access.requirement.privilege.writes or access.requirement.privilege.reduces]
