"""BaPipe: the pipeline order and a balanced partition, found together (Zhao et al., arXiv 2012.12544).

order      micro-batches  stages  step
1f1b-sno   8              2       2.1 ms
gpipe      8              2       2.4 ms
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, final

from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem
from maniple.strategies.pipeline.machine_levels import flat
from maniple.strategies.pipeline.operator_costs import cost_graph
from maniple.strategies.segmentation.order_search import explore
from maniple.strategies.segmentation.segment import load_compiled
from maniple.strategies.segmentation.stage_plan import plan_of

if TYPE_CHECKING:
    from maniple.operators.plan.plan import Plan, Term
    from maniple.strategies.cost_model.cost_model import CostModel

__all__: list[str] = []


@final
class BaPipe(AbstractDirectStrategy):
    """Explores 1F1B, GPipe and their memory and overlap variants, and takes the fastest that fits.

    Args:
        asynchronous: whether processors overlap transfers and both passes by themselves.
        micro_batches: the numbers to try; those above the batch are left out.
        memory_bytes: of each processor; by default its share of its memory.
        times: the cost model; by default the roofline.
    """

    name: ClassVar[str] = "bapipe"

    def __init__(
        self,
        *,
        asynchronous: bool = False,
        micro_batches: tuple[int, ...] = (1, 2, 4, 8, 16),
        memory_bytes: float | None = None,
        times: CostModel | None = None,
    ) -> None:
        self._asynchronous, self._micro_batches = asynchronous, micro_batches
        self._memory_bytes, self._times = memory_bytes, times

    def load_compiled(self) -> None:
        """Compile the searches of pipelines, or load them."""
        load_compiled()

    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem.

        Raises:
            RequestError: no order has a partition that fits, or something else than time is to be minimised.
        """
        graph, machine = problem.graph, problem.machine
        share = min(memory.capacity_bytes / len(machine.processors_of(memory.id)) for memory in machine.memories)
        costs = cost_graph(graph, machine, self._times)
        level = flat(machine, min(len(machine.processors), len(costs.nodes)))
        candidates = explore(
            costs,
            level,
            memory_bytes=share if self._memory_bytes is None else self._memory_bytes,
            asynchronous=self._asynchronous,
            micro_batches=[count for count in self._micro_batches if count <= graph.batch] or [1],
        )
        best = candidates[0]
        plan = plan_of(problem, self.name, costs, best.segmentation, best.given)
        reasons = dict(plan.explanation)
        runner_up = next((c for c in candidates if c.variation != best.variation), None)
        terms: list[tuple[str, Term]] = [("variation", best.variation.name), ("step_s", best.step_s)]
        if runner_up is not None:
            terms += [("runner-up", runner_up.variation.name), ("runner-up step_s", runner_up.step_s)]
        explanation = tuple((name, (*values, *terms) if name == "" else values) for name, values in reasons.items())
        return replace(plan, explanation=explanation)
