"""GPipe: as many balanced stages as processors, all micro-batches forward, then all back (Huang et al., NeurIPS 2019).

    stage  operators        processors   order gpipe, the number of micro-batches as simulated
    0      conv2d relu      p0
    1      linear loss      p1

What GPipe does, and nothing else: a pipeline in any case, as a measure for others. Where it does not fit, results are
computed again for backward (section 2.3), if that helps.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, ClassVar, final

from maniple.operators.lowering.micro_batch import MicroBatches
from maniple.process.error import RequestError
from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem
from maniple.strategies.pipeline.fleet import Fleet
from maniple.strategies.pipeline.machine_levels import flat
from maniple.strategies.pipeline.operator_costs import costs_by_class
from maniple.strategies.pipeline.problem import SegmentationProblem
from maniple.strategies.pipeline.stage_costs import Assumptions
from maniple.strategies.segmentation.finalists import choose, load_simulator, micro_batch_counts
from maniple.strategies.segmentation.matching import Matching
from maniple.strategies.segmentation.segment import load_compiled, segment
from maniple.strategies.segmentation.stage_plan import finalist

if TYPE_CHECKING:
    from maniple.operators.plan.plan import Plan
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.pipeline.pipeline_timing import StageTimes
    from maniple.strategies.pipeline.problem import Segmentation
    from maniple.strategies.segmentation.finalists import Finalist

__all__: list[str] = []

ORDER = "gpipe"


@final
class GPipe(AbstractDirectStrategy):
    """Cuts the graph into stages of nearly equal time, one for each processor.

    Args:
        stages: how many stages, at most; by default as many as processors.
        times: the cost model; by default the problem's.
    """

    name: ClassVar[str] = "gpipe"
    pipelines: ClassVar[bool] = True

    def __init__(self, *, stages: int | None = None, times: CostModel | None = None) -> None:
        self._stages, self._times = stages, times

    def load_compiled(self) -> None:
        """Compile the searches of pipelines and the simulator, or load them."""
        load_compiled()
        load_simulator()

    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem.

        Raises:
            RequestError: another order is asked for, or nothing fits in memory.
        """
        if problem.order not in {None, ORDER}:
            raise RequestError(f"strategy {self.name!r} has stages take turns as {ORDER!r}, got {problem.order!r}")
        model, count = self._times or problem.costs, len(problem.machine.processors)
        fleet = Fleet.of(problem.machine)
        found: list[Finalist] = []
        for parts in micro_batch_counts(problem):
            taken = costs_by_class(problem.graph, problem.machine, fleet, model, parts)
            devices = min(count if self._stages is None else self._stages, count, len(taken[0].nodes))
            level = flat(problem.machine, devices)
            given = Assumptions(order="gpipe", transfers="overlap", micro_batches=parts)
            asked = SegmentationProblem(taken[0], (level,), False, None, "throughput", given)
            matching = _widest(Matching(asked, taken, fleet), devices) if len(taken) > 1 else None
            cut, times = matching or (segment(asked), ())
            found.append(finalist(problem, self.name, asked, cut, ORDER, times))
        try:
            return choose(problem, self.name, found, ())
        except RequestError as error:
            try:
                return choose(problem, self.name, [_recomputing(problem, each) for each in found], ())
            except RequestError:
                raise error from None


def _recomputing(problem: Problem, finalist: Finalist) -> Finalist:
    """The pipeline whose operators are computed again for backward, but for those that run once for all of a step."""
    plan = finalist.plan
    parts = MicroBatches(problem.graph, 1 if plan.pipeline is None else plan.pipeline.micro_batches)
    cut = {node.name for node in problem.graph.nodes if parts.is_cut(node)}
    operators = tuple((name, replace(own, recompute=name in cut)) for name, own in plan.operators)
    name = f"{finalist.name}, computed again"
    return replace(finalist, name=name, plan=replace(plan, operators=operators))


def _widest(matching: Matching, devices: int) -> tuple[Segmentation, tuple[StageTimes, ...]] | None:
    """The match with the most stages, and what they take: of those that fit, else of all; None where there is none."""
    roomy = replace(matching, fleet=replace(matching.fleet, held_bytes=(inf,) * len(matching.fleet.classes)))
    for each in (matching, roomy):
        cut = each.widest(devices)
        if cut is not None:
            return cut, each.times(cut)
    return None
