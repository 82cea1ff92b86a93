"""GraphPipe: stages as a graph, beside each other where branches are (Jeon et al., ASPLOS 2025).

stage  operators       processors   reads
0      image tower     p0           -
1      text tower      p1           -
2      join, loss      p2           0 1       two deep: stage 0 and 1 have two micro-batches under way, not three

Where processors, memories or links differ, each stage is given to a class of processors, at what it takes there and at
the slowest link that one of them has. Stages are looked for anew for each number of micro-batches, of which each takes
something however small: where many kernels start, there is less room for other work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from math import fsum
from typing import TYPE_CHECKING, ClassVar, final

from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem
from maniple.strategies.pipeline.branching import Kind, Load, branchings
from maniple.strategies.pipeline.fleet import Fleet
from maniple.strategies.pipeline.machine_levels import flat
from maniple.strategies.pipeline.operator_costs import costs_by_class
from maniple.strategies.pipeline.pipeline_timing import StageTimes
from maniple.strategies.pipeline.problem import Segmentation, SegmentationProblem, Stage
from maniple.strategies.pipeline.stage_costs import Assumptions, Level, synchronization_s, transfer_s, work_s
from maniple.strategies.segmentation.finalists import choose, load_simulator, micro_batch_counts, rivals
from maniple.strategies.segmentation.segment import load_compiled
from maniple.strategies.segmentation.stage_plan import assumed, finalist

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maniple.operators.plan.plan import Plan
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.pipeline.branching import Cut
    from maniple.strategies.pipeline.cost_graph import CostGraph, CostNode
    from maniple.strategies.segmentation.finalists import Finalist

__all__: list[str] = []

EXPLORED = ("1f1b", "early_backward", "gpipe")
"""The orders that are explored where none is asked for; each goes by how many stages are still ahead."""


@final
class GraphPipe(AbstractDirectStrategy):
    """Cuts the graph into stages that follow its branches, and lets those beside each other work at the same time.

    Args:
        replicate: whether a stage may run on several processors; by default both are tried.
        times: the cost model; by default the problem's.
        alone: whether pipelines are compared with each other, and not with plans without one.
    """

    name: ClassVar[str] = "graphpipe"
    pipelines: ClassVar[bool] = True

    def __init__(self, *, replicate: bool | None = None, times: CostModel | None = None, alone: bool = False) -> None:
        self._replicate, self._times, self._alone = replicate, times, alone

    def load_compiled(self) -> None:
        """Compile the search of stages and the simulator, or load them."""
        load_compiled()
        load_simulator()

    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem: where an order or micro-batches are asked for, a pipeline.

        Raises:
            RequestError: none fits in memory, or the order that is asked for is not one of its stages.
        """
        fleet, model = Fleet.of(problem.machine), self._times or problem.costs
        rigs = [_Rig.of(problem, model, fleet, parts) for parts in micro_batch_counts(problem)]
        found = [each for rig in rigs for each in self._candidates(problem, rig)]
        return choose(problem, self.name, found, [] if self._alone else rivals(problem, found))

    def _candidates(self, problem: Problem, rig: _Rig) -> Iterator[Finalist]:
        """The pipelines of so many micro-batches on all processors and on half of them, in each order.

        The stages that follow the branches, and those whose slowest is fastest: they may be deeper.
        """
        machine, count = problem.machine, len(problem.machine.processors)
        level, kinds, parts = flat(machine, count), rig.kinds(), rig.parts
        orders = EXPLORED if problem.order is None else (problem.order,)
        for replicate in (False, True) if self._replicate is None else (self._replicate,):
            for devices in dict.fromkeys((count, max(1, count // 2))):
                found = branchings(rig.costs[0], kinds, devices, replicate=replicate)
                for cuts, order in product(dict.fromkeys((found[0], found[-1])), orders):
                    given = Assumptions(order=assumed(order), micro_batches=parts)
                    # What stages hold the simulator says.
                    asked = SegmentationProblem(rig.costs[0], (level,), True, None, "latency", given)
                    cut, times = rig.segmentation(asked, cuts), rig.times(given, cuts)
                    made = finalist(problem, self.name, asked, cut, order, times)
                    fill = filled_s(rig.costs[0], cut.stages, times)
                    yield replace(made, estimate_s=fill + (parts - 1) / parts * cut.bottleneck_s)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Rig:
    """A graph on the processors of a fleet, in some micro-batches.

    Args:
        costs: what it takes on a processor of each class.
        fleet: the processors.
        parts: how many micro-batches.
    """

    costs: tuple[CostGraph, ...]
    fleet: Fleet
    parts: int

    @staticmethod
    def of(problem: Problem, model: CostModel | None, fleet: Fleet, parts: int) -> _Rig:
        """The graph of a problem."""
        return _Rig(costs_by_class(problem.graph, problem.machine, fleet, model, parts), fleet, parts)

    def kinds(self) -> tuple[Kind, ...]:
        """The classes of processors."""
        return tuple(
            Kind(len(own), cache(partial(self._load, kind)), cache(partial(self._fits, kind)))
            for kind, own in enumerate(self.fleet.classes)
        )

    def _level(self, kind: int) -> Level:
        """A class of processors, at the slowest link that one of them has."""
        between = self.fleet.bandwidth
        return Level(len(self.fleet.classes[kind]), float(min(between[kind].min(), between[:, kind].min())))

    def _load(self, kind: int, nodes: int) -> Load:
        return stage_load(self.costs[kind], self._level(kind), self.parts, nodes)

    def _fits(self, kind: int, nodes: int) -> bool:
        """Whether a stage may fit in a processor: its weights, their gradients, and one micro-batch."""
        own = _own(self.costs[kind], nodes)
        held = 2 * sum(node.parameter_bytes for node in own) + sum(node.stored_bytes for node in own) / self.parts
        return held <= self.fleet.held_bytes[kind]

    def segmentation(self, asked: SegmentationProblem, cuts: Sequence[Cut]) -> Segmentation:
        """Stages on devices of their kind, each on the next ones that are free."""
        given, stages = asked.assumptions, list[Stage]()
        free = [list(own) for own in self.fleet.classes]
        for cut in cuts:
            costs, own = self.costs[cut.kind], _own(self.costs[cut.kind], cut.nodes)
            weights = fsum(node.parameter_bytes for node in own)
            load = self._load(cut.kind, cut.nodes).on(cut.replicas)
            load += synchronization_s(given, self._level(cut.kind), cut.replicas, 1, weights)
            held = asked.held_bytes(weights, fsum(node.stored_bytes for node in own), 0, cut.replicas)
            devices = tuple(free[cut.kind].pop(0) for _ in range(cut.replicas))
            nodes = tuple(place for place in range(len(costs.nodes)) if cut.nodes >> place & 1)
            crossing = sum(sizes_sent(costs, cut.nodes))
            stages.append(Stage(nodes, devices, load, fsum(node.compute_s for node in own), held, crossing))
        slowest = max(stage.load_s for stage in stages)
        return Segmentation(tuple(stages), slowest, 0.0, False, len(self.costs[0].nodes), slowest)

    def times(self, given: Assumptions, cuts: Sequence[Cut]) -> tuple[StageTimes, ...]:
        """What one micro-batch takes in every stage."""
        found, parts = [], given.micro_batches
        for cut in cuts:
            costs, own = self.costs[cut.kind], _own(self.costs[cut.kind], cut.nodes)
            forward = fsum(work_s(given, node.forward_s, node.forward_start_s, cut.replicas) for node in own)
            backward = fsum(work_s(given, node.backward_s, node.backward_start_s, cut.replicas) for node in own)
            moved = transfer_s(given, self._level(cut.kind), cut.replicas, sum(sizes_sent(costs, cut.nodes)))
            found.append(StageTimes(forward / parts, backward / parts, moved / parts / 2))
        return tuple(found)


def _own(costs: CostGraph, nodes: int) -> list[CostNode]:
    """The nodes of a stage."""
    return [node for place, node in enumerate(costs.nodes) if nodes >> place & 1]


def sizes_sent(costs: CostGraph, nodes: int) -> list[int]:
    """The bytes of each result that leaves a stage.

    Args:
        costs: the graph.
        nodes: of the stage, as bits.
    """
    sent = {a for a, b in costs.edges if nodes >> a & 1 and not nodes >> b & 1}
    return [costs.nodes[node].activation_bytes for node in sent]


def stage_load(costs: CostGraph, level: Level, parts: int, nodes: int) -> Load:
    """What a stage takes of a mini-batch: its work, and what it sends or is sent, both ways.

    Args:
        costs: the graph.
        level: the devices.
        parts: how many micro-batches, each of which takes what it takes however small.
        nodes: of the stage, as bits.
    """
    own = _own(costs, nodes)
    work, started = fsum(node.compute_s for node in own), fsum(node.start_s for node in own)
    received = {a for a, b in costs.edges if nodes >> b & 1 and not nodes >> a & 1}
    sizes = sum(sizes_sent(costs, nodes)), sum(costs.nodes[node].activation_bytes for node in received)
    return Load(work - started, parts * started, max(transfer_s(Assumptions(), level, 1, size) for size in sizes))


def filled_s(costs: CostGraph, stages: Sequence[Stage], times: Sequence[StageTimes]) -> float:
    """Seconds of one micro-batch through all stages and back: the longest way, of stages that read from each other."""
    home = {node: number for number, stage in enumerate(stages) for node in stage.nodes}
    reads = {(home[a], home[b]) for a, b in costs.edges if home[a] != home[b]}
    done = [0.0] * len(stages)
    for number, own in enumerate(times):
        before = [done[a] + 2 * times[a].transfer_s for a, b in reads if b == number]
        done[number] = max(before, default=0.0) + own.both_s
    return max(done)
