"""The antichain strategy: a pipeline over the ideals of the operator graph, exact where they can be enumerated.

operator         stage  processors
conv2d, relu     0      p0
linear, loss     1      p1

For each order and number of micro-batches the partition search finds the pipeline that it expects to finish a
mini-batch soonest; which of these runs, or a plan without a pipeline, the simulator decides (see `finalists`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, ClassVar, final

from maniple.process.error import RequestError
from maniple.process.inventory import announce
from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem
from maniple.strategies.pipeline.fleet import Fleet
from maniple.strategies.pipeline.machine_levels import flat, share_bytes
from maniple.strategies.pipeline.operator_costs import costs_by_class
from maniple.strategies.pipeline.problem import SegmentationProblem
from maniple.strategies.pipeline.stage_costs import Assumptions
from maniple.strategies.segmentation.finalists import choose, load_simulator, micro_batch_counts, rivals
from maniple.strategies.segmentation.matching import Matching
from maniple.strategies.segmentation.segment import load_compiled, segment
from maniple.strategies.segmentation.stage_plan import assumed, finalist

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maniple.operators.plan.plan import Plan
    from maniple.runtime.machine.machine import Machine
    from maniple.strategies.cost_model.cost_model import CostModel
    from maniple.strategies.pipeline.cost_graph import CostGraph
    from maniple.strategies.pipeline.stage_costs import Order
    from maniple.strategies.segmentation.finalists import Finalist

__all__: list[str] = []

Costs = Mapping[int, "tuple[CostGraph, ...]"]
"""By number of micro-batches what operators take on a processor of each class."""
EXPLORED = ("1f1b", "early_backward", "gpipe")
"""The orders that are explored where none is asked for."""
IDEALS = 10_000
"""So many ideals each partition search enumerates at most. A search over pairs of them takes their square: two dozen
searches of Inception-v3's 35,682 had not ended after 23 minutes; the two that were compared found steps 0.3 and 1 %
shorter, by a clock that the simulator corrects.
"""
LONG_S = 30.0
"""Searches that will take so long in all are announced."""


@final
class Antichain(AbstractDirectStrategy):
    """Cuts the graph into the pipeline stages that finish a mini-batch soonest, one or more processors each.

    Args:
        stages: the most processors to use; by default all.
        replicate: whether a stage may run on several processors; by default both are tried.
        memory_bytes: of each processor; by default its share of its memory.
        times: the cost model; by default the problem's.
        alone: whether pipelines are compared with each other, and not with plans without one.
    """

    name: ClassVar[str] = "antichain"
    pipelines: ClassVar[bool] = True

    def __init__(
        self,
        *,
        stages: int | None = None,
        replicate: bool | None = None,
        memory_bytes: float | None = None,
        times: CostModel | None = None,
        alone: bool = False,
    ) -> None:
        self._stages, self._replicate = stages, replicate
        self._memory_bytes, self._times, self._alone = memory_bytes, times, alone

    def load_compiled(self) -> None:
        """Compile the searches of pipelines and the simulator, or load them."""
        load_compiled()
        load_simulator()

    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem: where an order or micro-batches are asked for, a pipeline.

        Raises:
            RequestError: no pipeline keeps the memory limit, or the order that is asked for is not one of its stages.
        """
        fleet = Fleet.of(problem.machine).within_limit(self._memory_bytes)
        model = self._times or problem.costs
        costs = {
            parts: costs_by_class(problem.graph, problem.machine, fleet, model, parts)
            for parts in micro_batch_counts(problem)
        }
        refusals: list[RequestError] = []
        found = [*self._candidates(problem, costs, fleet, refusals), *self._matched(problem, costs, fleet)]
        if not found and refusals:
            raise refusals[0]
        others = [] if self._alone else rivals(problem, found)
        several = [each for each in found if len(each.plan.stages) > 1]
        return choose(problem, self.name, found if others else several or found, others)

    def _matched(self, problem: Problem, costs: Costs, fleet: Fleet) -> Iterator[Finalist]:
        """Where processors or links differ, pipelines whose stages are matched to them, for each number of them."""
        if len(fleet.classes) == 1:
            return
        machine, devices = problem.machine, self._devices(problem.machine)
        for replicate, (assumption, orders), (parts, own) in product(
            self._replicas, _explored(problem).items(), costs.items()
        ):
            level = flat(machine, devices if replicate else min(devices, len(own[0].nodes)))
            given = Assumptions(order=assumption, micro_batches=parts)
            asked = SegmentationProblem(own[0], (level,), replicate, None, "throughput", given)
            matching = Matching(asked, own, fleet)
            for cut in matching.pipelines():
                if sum(stage.replicas for stage in cut.stages) <= devices:
                    for order in orders if len(cut.stages) > 1 else orders[:1]:
                        yield finalist(problem, self.name, asked, cut, order, matching.times(cut))

    @property
    def _replicas(self) -> tuple[bool, ...]:
        """Whether stages have replicas, as far as it is said."""
        return (False, True) if self._replicate is None else (self._replicate,)

    def _devices(self, machine: Machine) -> int:
        """The most processors to use."""
        return len(machine.processors) if self._stages is None else min(self._stages, len(machine.processors))

    def _candidates(
        self, problem: Problem, costs: Costs, fleet: Fleet, refusals: list[RequestError]
    ) -> Iterator[Finalist]:
        """What the search of equal processors finds for each order and number of micro-batches; else notes why not.

        Where processors differ, it takes all as processor 0; what it finds takes what its processors take.
        """
        machine = problem.machine
        devices = self._devices(machine)
        limit = share_bytes(machine) if self._memory_bytes is None else self._memory_bytes
        wanted = _explored(problem)
        searches = [*product(self._replicas, wanted.items(), costs.items())]
        began_s, told = time.monotonic(), False
        for done, (replicate, (assumption, orders), (parts, own)) in enumerate(searches):
            told = told or _tell(done, len(searches), time.monotonic() - began_s)
            level = flat(machine, devices if replicate else min(devices, len(own[0].nodes)))
            given = Assumptions(order=assumption, micro_batches=parts)
            try:
                asked = SegmentationProblem(own[0], (level,), replicate, limit, "latency", given, IDEALS)
                cut = segment(asked)
            except RequestError as error:
                refusals.append(error)
                continue
            times = Matching(asked, own, fleet).times(cut) if len(own) > 1 else ()
            # A stage by itself takes turns with nobody.
            for order in orders if len(cut.stages) > 1 else orders[:1]:
                yield finalist(problem, self.name, asked, cut, order, times)


def _tell(done: int, count: int, elapsed_s: float) -> bool:
    """Say how long partition searches will take in all, where that is long; whether it was said."""
    expected_s = elapsed_s / done * count if done else 0.0
    if expected_s < LONG_S or not done:
        return False
    announce(
        f"antichain: {done} of {count} partition searches took {elapsed_s:.0f} s, all take about {expected_s:.0f} s; "
        "with an order and a number of micro-batches that are asked for there are fewer"
    )
    return True


def _explored(problem: Problem) -> dict[Order, list[str]]:
    """The orders to explore, by what partition searches assume of them."""
    wanted: dict[Order, list[str]] = {}
    for order in EXPLORED if problem.order is None else (problem.order,):
        wanted.setdefault(assumed(order), []).append(order)
    return wanted
