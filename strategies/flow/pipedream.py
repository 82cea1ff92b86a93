"""PipeDream: the stages, and the processors of each, whose slowest is fastest, without a flush (SOSP 2019).

    stage  operators        processors   order asynchronous, semantics weights as asked
    0      conv2d relu      p0 p1 p2     replicas share the samples of a mini-batch
    1      linear loss      p3

The optimizer is the one of `maniple partition`: exact where the ideals of the graph can be enumerated, on one level of
the machine and on all; under 2bw for each number of micro-batches. Where processors differ, stages are also matched to
them. What is found is simulated, and the fastest is the plan. Not as published: replicas share each mini-batch, where
PipeDream's take mini-batches in turn, so that a stage sees each update once.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, ClassVar, final

from maniple.process.error import RequestError
from maniple.strategies.flow.flow_plan import (
    asked_rule,
    flow_assumptions,
    flow_costs,
    flow_finalist,
    flow_orders,
    flow_parts,
    load_flows,
)
from maniple.strategies.flow.two_stages import two_stages
from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem
from maniple.strategies.pipeline.fleet import Fleet
from maniple.strategies.pipeline.machine_levels import flat, levels, share_bytes
from maniple.strategies.pipeline.problem import SegmentationProblem
from maniple.strategies.segmentation.finalists import Finalist, choose
from maniple.strategies.segmentation.matching import Matching
from maniple.strategies.segmentation.segment import segment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maniple.operators.plan.plan import Plan
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.pipeline.cost_graph import CostGraph
    from maniple.strategies.pipeline.problem import Segmentation
    from maniple.strategies.pipeline.stage_costs import Assumptions, Level

__all__: list[str] = []


@final
class PipeDream(AbstractDirectStrategy):
    """Cuts the graph into stages on one or more processors each, whose mini-batches follow each other.

    Args:
        memory_bytes: of each processor; by default its share of its memory.
        times: the cost model; by default the problem's.
    """

    name: ClassVar[str] = "pipedream"
    pipelines: ClassVar[bool] = True
    flows: ClassVar[bool] = True

    def __init__(self, *, memory_bytes: float | None = None, times: CostModel | None = None) -> None:
        self._memory_bytes, self._times = memory_bytes, times

    def load_compiled(self) -> None:
        """Compile the searches of pipelines and the simulator, or load them."""
        load_flows(self)

    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem.

        Raises:
            RequestError: no rule is asked for, nothing can be cut, or nothing fits in memory.
        """
        rule, fleet = asked_rule(problem, self.name), Fleet.of(problem.machine).within_limit(self._memory_bytes)
        found, refusals = list[Finalist](), list[RequestError]()
        for parts in flow_parts(problem, rule):
            costs = flow_costs(problem, self.name, self._times or problem.costs, fleet, parts)
            for matching, cut in self._cuts(problem, costs, fleet, flow_assumptions(rule, parts), refusals):
                # One stage has no versions but the newest, and is data parallelism.
                if len(cut.stages) > 1 and (not rule.adds or parts >= len(cut.stages)):
                    times = matching.times(cut) if len(fleet.classes) > 1 else ()
                    for order in flow_orders(problem, rule, parts, len(cut.stages)):
                        found.append(flow_finalist(problem, self.name, matching.asked, cut, rule, times, order))
        if not found and refusals:
            raise refusals[0]
        if not found:
            count = len(problem.machine.processors)
            raise RequestError(
                f"strategy {self.name!r}: expected a machine with at least 2 processors for stages, got {count}"
            )
        return choose(problem, self.name, found, ())

    def _cuts(
        self,
        problem: Problem,
        costs: tuple[CostGraph, ...],
        fleet: Fleet,
        given: Assumptions,
        refusals: list[RequestError],
    ) -> Iterator[tuple[Matching, Segmentation]]:
        """The pipelines under some assumptions, each beside what matches its stages; else notes why there is none.

        Those of PipeDream's optimizer, straight, with replicas, and on all levels of the machine, which takes all
        processors as the first; and those whose replicas synchronise for nothing, for links do that while the next
        mini-batch is computed. Beside what has replicas on one level is the best of two stages, which need the fewest
        micro-batches. Where processors differ, also those whose stages are matched to them.
        """
        machine, count = problem.machine, len(problem.machine.processors)
        limit = share_bytes(machine) if self._memory_bytes is None else self._memory_bytes
        straight, shared = (flat(machine, min(count, len(costs[0].nodes))),), (flat(machine, count),)
        ways: list[tuple[tuple[Level, ...], bool]] = [(straight, False), (shared, True)]
        every = [*ways, *([(levels(machine), True)] if len(levels(machine)) > 1 else [])]
        hidden = replace(given, synchronized=0.0)
        for (level, replicate), assumed in [*product(every, (given,)), (ways[1], hidden)]:
            try:
                asked = SegmentationProblem(costs[0], level, replicate, limit, "throughput", assumed)
                cut = segment(asked)
            except RequestError as error:
                refusals.append(error)
            else:
                shallow = two_stages(asked) if level is shared else None
                yield from ((Matching(asked, costs, fleet), each) for each in (cut, shallow) if each is not None)
        for level, replicate in ways if len(fleet.classes) > 1 else ():
            asked = SegmentationProblem(costs[0], level, replicate, None, "throughput", given)
            matching = Matching(asked, costs, fleet)
            for cut in matching.pipelines():
                if sum(stage.replicas for stage in cut.stages) <= asked.devices:
                    yield matching, cut
