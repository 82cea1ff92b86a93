"""SpecTrain: as many balanced stages as processors, without a flush, whose weights are predicted (Chen et al., 2018).

stage  operators        processor   order asynchronous, semantics weights=spectrain
0      conv2d relu      p0
1      linear loss      p1

Where processors differ, stages are matched to them, too, as many as fit, and the faster pipeline is the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.training.prediction import PREDICTORS
from maniple.process.error import RequestError
from maniple.strategies.flow.flow_plan import asked_rule, flow_assumptions, flow_costs, flow_finalist, load_flows
from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem
from maniple.strategies.pipeline.fleet import Fleet
from maniple.strategies.pipeline.machine_levels import flat, share_bytes
from maniple.strategies.pipeline.problem import SegmentationProblem
from maniple.strategies.segmentation.finalists import Finalist, choose
from maniple.strategies.segmentation.matching import Matching
from maniple.strategies.segmentation.segment import segment

if TYPE_CHECKING:
    from maniple.operators.plan.plan import Plan
    from maniple.strategies.cost_model.cost_model import CostModel

__all__: list[str] = []


@final
class SpecTrain(AbstractDirectStrategy):
    """Cuts the graph into stages of nearly equal time, one for each processor, which read predicted weights.

    Args:
        stages: how many stages, at most; by default as many as processors.
        times: the cost model; by default the problem's.
    """

    name: ClassVar[str] = "spectrain"
    pipelines: ClassVar[bool] = True
    flows: ClassVar[bool] = True

    def __init__(self, *, stages: int | None = None, times: CostModel | None = None) -> None:
        self._stages, self._times = stages, times

    def load_compiled(self) -> None:
        """Compile the searches of pipelines and the simulator, or load them."""
        load_flows(self)

    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem.

        Raises:
            RequestError: no rule that predicts is asked for, nothing can be cut, or nothing fits in memory.
        """
        rule = asked_rule(problem, self.name)
        if not rule.predicts:
            raise RequestError(
                f"strategy {self.name!r} predicts weights: expected semantics weights={'|'.join(PREDICTORS.names())}, "
                f"got {rule.name!r}; ask strategy pipedream"
            )
        fleet = Fleet.of(problem.machine)
        costs = flow_costs(problem, self.name, self._times or problem.costs, fleet)
        count = len(problem.machine.processors)
        devices = min(count if self._stages is None else self._stages, count, len(costs[0].nodes))
        if devices < 2:
            raise RequestError(f"strategy {self.name!r}: expected at least 2 processors for stages, got {devices}")
        level, given = flat(problem.machine, devices), flow_assumptions(rule)
        matching = Matching(SegmentationProblem(costs[0], (level,), assumptions=given), costs, fleet)
        found = list[Finalist]()
        matched = matching.widest(devices) if len(fleet.classes) > 1 else None
        if matched is not None and len(matched.stages) > 1:
            times = matching.times(matched)
            found.append(flow_finalist(problem, self.name, matching.asked, matched, rule, times))
        try:
            limit = share_bytes(problem.machine)
            asked = SegmentationProblem(costs[0], (level,), False, limit, "throughput", given)
            cut = segment(asked)
            times = matching.times(cut) if len(fleet.classes) > 1 else ()
            found.append(flow_finalist(problem, self.name, asked, cut, rule, times))
        except RequestError:
            if not found:
                raise
        return choose(problem, self.name, found, ())
