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
from maniple.strategies.pipeline.operator_costs import costs_by_class
from maniple.strategies.pipeline.pipeline_timing import RUNS_AS
from maniple.strategies.segmentation.finalists import choose, load_simulator, micro_batch_counts, rivals
from maniple.strategies.segmentation.order_search import Candidate, explore, explore_matched
from maniple.strategies.segmentation.segment import load_compiled
from maniple.strategies.segmentation.stage_plan import assumed, finalist

if TYPE_CHECKING:
    from maniple.operators.plan.plan import Plan
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.pipeline.cost_graph import CostGraph
    from maniple.strategies.segmentation.finalists import Finalist

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
        fleet, machine = Fleet.of(problem.machine).within_limit(self._memory_bytes), problem.machine
        candidates, refusals = list[Candidate](), list[RequestError]()
        for parts in micro_batch_counts(problem):
            costs = costs_by_class(problem.graph, machine, fleet, self._times or problem.costs, parts)
            try:
                candidates += self._explored(machine, costs, fleet, parts)
            except RequestError as error:
                refusals.append(error)
        if not candidates and refusals:
            raise refusals[0]
        wanted = None if problem.order is None else assumed(problem.order)
        fitting = [each for each in candidates if wanted is None or wanted == assumed(RUNS_AS[each.variation.order])]
        if not fitting:
            raise RequestError(f"bapipe: order {problem.order!r} is none of those that it explores, or does not fit")
        found = [self._finalist(problem, each, problem.order or "") for each in fitting]
        return choose(problem, self.name, found, [] if self._alone else rivals(problem, found))

    def _explored(
        self, machine: Machine, costs: tuple[CostGraph, ...], fleet: Fleet, parts: int
    ) -> tuple[Candidate, ...]:
        """What is explored with so many micro-batches; matched where processors, memories or links differ.

        Raises:
            RequestError: nothing fits.
        """
        level = flat(machine, min(len(machine.processors), len(costs[0].nodes)))
        matched, counts, overlaps = tuple[Candidate, ...](), (parts,), self._asynchronous
        if len(fleet.classes) > 1:
            matched = explore_matched(costs, fleet, level, asynchronous=overlaps, micro_batches=counts)
        limit = share_bytes(machine) if self._memory_bytes is None else self._memory_bytes
        return matched or explore(costs[0], level, memory_bytes=limit, asynchronous=overlaps, micro_batches=counts)

    def _finalist(self, problem: Problem, candidate: Candidate, order: str) -> Finalist:
        own = finalist(problem, self.name, candidate.asked, candidate.segmentation, order, candidate.times)
        return own.explored(candidate.variation.name, candidate.step_s)
