"""BaPipe: the pipeline order and a balanced partition, found together (Zhao et al., arXiv 2012.12544).

order      micro-batches  stages  step
1f1b-sno   8              2       2.1 ms
gpipe      8              2       2.4 ms

The exploration's own clock says in which order its pipelines are simulated; the simulator decides, among them and plans
without a pipeline, of which BaPipe falls back to data parallelism (see `finalists`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from maniple.process.error import RequestError
from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem
from maniple.strategies.pipeline.fleet import Fleet
from maniple.strategies.pipeline.machine_levels import flat, share_bytes
from maniple.strategies.pipeline.operator_costs import cost_graph, costs_by_class
from maniple.strategies.pipeline.pipeline_timing import RUNS_AS
from maniple.strategies.segmentation.finalists import choose, load_simulator, micro_batch_counts, rivals
from maniple.strategies.segmentation.order_search import explore, explore_matched
from maniple.strategies.segmentation.segment import load_compiled
from maniple.strategies.segmentation.stage_plan import assumed, finalist

if TYPE_CHECKING:
    from maniple.operators.plan.plan import Plan
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.pipeline.cost_graph import CostGraph
    from maniple.strategies.pipeline.stage_costs import Level
    from maniple.strategies.segmentation.finalists import Finalist
    from maniple.strategies.segmentation.order_search import Candidate

__all__: list[str] = []


@final
class BaPipe(AbstractDirectStrategy):
    """Explores 1F1B, GPipe and their memory and overlap variants, and takes the fastest that fits.

    Args:
        asynchronous: whether processors overlap transfers and both passes by themselves.
        memory_bytes: of each processor; by default its share of its memory.
        times: the cost model; by default the problem's.
        alone: whether pipelines are compared with each other, and not with plans without one.
    """

    name: ClassVar[str] = "bapipe"
    pipelines: ClassVar[bool] = True

    def __init__(
        self,
        *,
        asynchronous: bool = False,
        memory_bytes: float | None = None,
        times: CostModel | None = None,
        alone: bool = False,
    ) -> None:
        self._asynchronous = asynchronous
        self._memory_bytes, self._times, self._alone = memory_bytes, times, alone

    def load_compiled(self) -> None:
        """Compile the searches of pipelines and the simulator, or load them."""
        load_compiled()
        load_simulator()

    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem: where an order or micro-batches are asked for, a pipeline.

        Raises:
            RequestError: no order has a partition that fits, or something else than time is to be minimised.
        """
        graph, machine = problem.graph, problem.machine
        costs = cost_graph(graph, machine, self._times or problem.costs)
        level = flat(machine, min(len(machine.processors), len(costs.nodes)))
        counts = micro_batch_counts(problem)
        candidates = self._matched(problem, costs, level, counts) or explore(
            costs,
            level,
            memory_bytes=share_bytes(machine) if self._memory_bytes is None else self._memory_bytes,
            asynchronous=self._asynchronous,
            micro_batches=counts,
        )
        wanted = None if problem.order is None else assumed(problem.order)
        fitting = [each for each in candidates if wanted is None or wanted == assumed(RUNS_AS[each.variation.order])]
        if not fitting:
            raise RequestError(f"bapipe: order {problem.order!r} is none of those that it explores, or does not fit")
        found = [self._finalist(problem, each, problem.order or "") for each in fitting]
        return choose(problem, self.name, found, [] if self._alone else rivals(problem, found))

    def _matched(
        self, problem: Problem, costs: CostGraph, level: Level, counts: tuple[int, ...]
    ) -> tuple[Candidate, ...]:
        """What is explored where processors, memories or links differ; none where all are alike, or nothing fits."""
        fleet = Fleet.of(problem.machine).within_limit(self._memory_bytes)
        if len(fleet.classes) == 1:
            return ()
        taken = costs_by_class(problem.graph, problem.machine, fleet, self._times or problem.costs, costs)
        return explore_matched(taken, fleet, level, asynchronous=self._asynchronous, micro_batches=counts)

    def _finalist(self, problem: Problem, candidate: Candidate, order: str) -> Finalist:
        own = finalist(problem, self.name, candidate.asked, candidate.segmentation, order, candidate.times)
        return own.explored(candidate.variation.name, candidate.step_s)
