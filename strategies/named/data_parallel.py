"""Data parallelism: every operator is split by sample over all processors.

operator   degrees  processors
(each)     b=2      p0 p1
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from maniple.strategies.interface.placement import complete, split_sample
from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem

if TYPE_CHECKING:
    from maniple.operators.plan.plan import Plan

__all__: list[str] = []


@final
class DataParallel(AbstractDirectStrategy):
    """Splits the sample factor of every operator over all processors, or over as many as there are samples."""

    name: ClassVar[str] = "data_parallel"

    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem."""
        operators = tuple(
            (node.name, split_sample(problem.graph, node, problem.machine)) for node in problem.graph.nodes
        )
        return complete(problem, self.name, operators)
