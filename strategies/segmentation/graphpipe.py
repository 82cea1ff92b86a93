"""GraphPipe: stages as a graph, beside each other where branches are (Jeon et al., ASPLOS 2025).

stage  operators       processors   reads
0      image tower     p0           -
1      text tower      p1           -
2      join, loss      p2           0 1       two deep: stage 0 and 1 have two micro-batches under way, not three
"""

from __future__ import annotations

from dataclasses import replace
from math import fsum
from typing import TYPE_CHECKING, ClassVar, final

from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem
from maniple.strategies.pipeline.branching import branching
from maniple.strategies.pipeline.machine_levels import flat
from maniple.strategies.pipeline.operator_costs import cost_graph
from maniple.strategies.pipeline.problem import Segmentation, SegmentationProblem, Stage
from maniple.strategies.pipeline.stage_costs import Assumptions, synchronization_s, transfer_s
from maniple.strategies.segmentation.finalists import choose, load_simulator, micro_batch_counts, rivals
from maniple.strategies.segmentation.order_search import stage_times
from maniple.strategies.segmentation.stage_plan import assumed, finalist

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maniple.operators.plan.plan import Plan
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.pipeline.branching import Cut
    from maniple.strategies.pipeline.cost_graph import CostGraph
    from maniple.strategies.pipeline.pipeline_timing import StageTimes
    from maniple.strategies.pipeline.stage_costs import Level
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
        """Compile the simulator, or load it."""
        load_simulator()

    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem: where an order or micro-batches are asked for, a pipeline.

        Raises:
            RequestError: none fits in memory, or the order that is asked for is not one of its stages.
        """
        costs = cost_graph(problem.graph, problem.machine, self._times or problem.costs)
        found = list(self._candidates(problem, costs))
        return choose(problem, self.name, found, [] if self._alone else rivals(problem, found))

    def _candidates(self, problem: Problem, costs: CostGraph) -> Iterator[Finalist]:
        """The pipelines on all processors and on half of them, in each order, with each number of micro-batches."""
        machine, count = problem.machine, len(problem.machine.processors)
        level = flat(machine, count)
        for replicate in (False, True) if self._replicate is None else (self._replicate,):
            for devices in dict.fromkeys((count, max(1, count // 2))):
                cuts = branching(costs, devices, lambda nodes: stage_s(costs, level, nodes), replicate=replicate)
                for order in EXPLORED if problem.order is None else (problem.order,):
                    for parts in micro_batch_counts(problem):
                        given = Assumptions(order=assumed(order), micro_batches=parts)
                        # What stages hold the simulator says.
                        asked = SegmentationProblem(costs, (level,), True, None, "latency", given)
                        cut = segmentation(asked, cuts)
                        made = finalist(problem, self.name, asked, cut, order)
                        fill = filled_s(costs, cut.stages, stage_times(asked, cut))
                        yield replace(made, estimate_s=fill + (parts - 1) / parts * cut.bottleneck_s)


def stage_s(costs: CostGraph, level: Level, nodes: int) -> float:
    """Seconds of a mini-batch that a stage takes: its work, or what it sends or is sent, both ways.

    Args:
        costs: the graph.
        level: the devices.
        nodes: of the stage, as bits.
    """
    work = fsum(node.compute_s for place, node in enumerate(costs.nodes) if nodes >> place & 1)
    sent = {a for a, b in costs.edges if nodes >> a & 1 and not nodes >> b & 1}
    received = {a for a, b in costs.edges if nodes >> b & 1 and not nodes >> a & 1}
    sizes = (sum(costs.nodes[node].activation_bytes for node in found) for found in (sent, received))
    return max(work, *(transfer_s(Assumptions(), level, 1, size) for size in sizes))


def segmentation(asked: SegmentationProblem, cuts: Sequence[Cut]) -> Segmentation:
    """Stages on devices in a row, each on the next ones that are free."""
    costs, given, level = asked.graph, asked.assumptions, asked.levels[0]
    stages: list[Stage] = []
    first = 0
    for cut in cuts:
        nodes = tuple(place for place in range(len(costs.nodes)) if cut.nodes >> place & 1)
        own = [costs.nodes[node] for node in nodes]
        weights = fsum(node.parameter_bytes for node in own)
        load = stage_s(costs, level, cut.nodes) / cut.replicas
        load += synchronization_s(given, level, cut.replicas, 1, weights)
        sent = {a for a, b in costs.edges if cut.nodes >> a & 1 and not cut.nodes >> b & 1}
        held = asked.held_bytes(weights, fsum(node.stored_bytes for node in own), 0, cut.replicas)
        devices = tuple(range(first, first + cut.replicas))
        crossing = sum(costs.nodes[node].activation_bytes for node in sent)
        stages.append(Stage(nodes, devices, load, fsum(node.compute_s for node in own), held, crossing))
        first += cut.replicas
    slowest = max(stage.load_s for stage in stages)
    return Segmentation(tuple(stages), slowest, 0.0, False, len(costs.nodes), slowest)


def filled_s(costs: CostGraph, stages: Sequence[Stage], times: Sequence[StageTimes]) -> float:
    """Seconds of one micro-batch through all stages and back: the longest way, of stages that read from each other."""
    home = {node: number for number, stage in enumerate(stages) for node in stage.nodes}
    reads = {(home[a], home[b]) for a, b in costs.edges if home[a] != home[b]}
    done = [0.0] * len(stages)
    for number, own in enumerate(times):
        before = [done[a] + 2 * times[a].transfer_s for a, b in reads if b == number]
        done[number] = max(before, default=0.0) + own.both_s
    return max(done)
