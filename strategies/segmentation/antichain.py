"""The antichain strategy: a pipeline over the ideals of the operator graph, exact where they can be enumerated.

operator         stage  processors
conv2d, relu     0      p0
linear, loss     1      p1
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem
from maniple.strategies.pipeline.machine_levels import flat
from maniple.strategies.pipeline.operator_costs import cost_graph
from maniple.strategies.pipeline.problem import SegmentationProblem
from maniple.strategies.pipeline.stage_costs import Assumptions, Order
from maniple.strategies.segmentation.segment import load_compiled, segment
from maniple.strategies.segmentation.stage_plan import plan_of

if TYPE_CHECKING:
    from maniple.operators.plan.plan import Plan
    from maniple.strategies.cost_model.cost_model import CostModel

__all__: list[str] = []


@final
class Antichain(AbstractDirectStrategy):
    """Cuts the graph into the pipeline stages that finish a mini-batch soonest, one or more processors each.

    Args:
        stages: the most processors to use; by default all.
        replicate: whether a stage may run on several processors.
        order: the pipeline order, one that ends with a flush.
        micro_batches: into how many parts the mini-batch is cut; at most one for each sample.
        memory_bytes: of each processor; None: no limit.
        times: the cost model; by default the roofline.
    """

    name: ClassVar[str] = "antichain"

    def __init__(
        self,
        *,
        stages: int | None = None,
        replicate: bool = False,
        order: Order = "1f1b",
        micro_batches: int = 8,
        memory_bytes: float | None = None,
        times: CostModel | None = None,
    ) -> None:
        self._stages, self._replicate = stages, replicate
        self._order: Order = order
        self._micro_batches, self._memory_bytes, self._times = micro_batches, memory_bytes, times

    def load_compiled(self) -> None:
        """Compile the searches of pipelines, or load them."""
        load_compiled()

    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem.

        Raises:
            RequestError: no pipeline keeps the memory limit, or something else than time is to be minimised.
        """
        graph, machine = problem.graph, problem.machine
        given = Assumptions(order=self._order, micro_batches=min(self._micro_batches, graph.batch))
        devices = len(machine.processors) if self._stages is None else min(self._stages, len(machine.processors))
        costs = cost_graph(graph, machine, self._times)
        most = devices if self._replicate else min(devices, len(costs.nodes))
        asked = SegmentationProblem(
            costs,
            (flat(machine, most),),
            self._replicate,
            self._memory_bytes,
            "latency",
            given,
        )
        return plan_of(problem, self.name, costs, segment(asked), given)
