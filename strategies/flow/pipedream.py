"""PipeDream: the stages, and the processors of each, whose slowest is fastest, without a flush (SOSP 2019).

    stage  operators        processors   order asynchronous, semantics weights as asked
    0      conv2d relu      p0 p1 p2     replicas share the samples of a mini-batch
    1      linear loss      p3

The optimizer is the one of `maniple partition`: exact where the ideals of the graph can be enumerated, on one level of
the machine and on all; under 2bw for each number of micro-batches. What it finds is simulated, and the fastest is the
plan. Not as published: replicas share each mini-batch, where PipeDream's take mini-batches in turn, so that a stage
sees each update once.
"""

from __future__ import annotations

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
from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem
from maniple.strategies.pipeline.machine_levels import flat, levels, share_bytes
from maniple.strategies.pipeline.problem import SegmentationProblem
from maniple.strategies.segmentation.finalists import choose
from maniple.strategies.segmentation.segment import segment

if TYPE_CHECKING:
    from maniple.operators.plan.plan import Plan
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.pipeline.stage_costs import Level
    from maniple.strategies.segmentation.finalists import Finalist

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
        rule = asked_rule(problem, self.name)
        costs = flow_costs(problem, self.name, self._times or problem.costs)
        machine = problem.machine
        limit = share_bytes(machine) if self._memory_bytes is None else self._memory_bytes
        count = len(machine.processors)
        ways: list[tuple[tuple[Level, ...], bool]] = [
            ((flat(machine, min(count, len(costs.nodes))),), False),
            ((flat(machine, count),), True),
        ]
        ways += [(levels(machine), True)] * (len(levels(machine)) > 1)
        found: list[Finalist] = []
        refusals: list[RequestError] = []
        for parts, (level, replicate) in product(flow_parts(problem, rule), ways):
            given = flow_assumptions(rule, parts)
            try:
                asked = SegmentationProblem(costs, level, replicate, limit, "throughput", given)
                cut = segment(asked)
            except RequestError as error:
                refusals.append(error)
                continue
            # One stage has no versions but the newest, and is data parallelism.
            if len(cut.stages) > 1 and (not rule.adds or parts >= len(cut.stages)):
                orders = flow_orders(problem, rule, parts, len(cut.stages))
                found += [flow_finalist(problem, self.name, asked, cut, rule, order) for order in orders]
        if not found and refusals:
            raise refusals[0]
        if not found:
            raise RequestError(
                f"strategy {self.name!r}: expected a machine with at least 2 processors for stages, got {count}"
            )
        return choose(problem, self.name, found, ())
