"""Model parallelism: operators on different processors, none of them split.

operator         flops  processors
conv2d, relu     60     p0
linear, loss     40     p1
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from maniple.strategies.interface.placement import complete, node_flops, whole
from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.operators.plan.plan import Plan

__all__: list[str] = []


@final
class ModelParallel(AbstractDirectStrategy):
    """Gives every processor a contiguous block of operators, balanced by floating-point operations."""

    name: ClassVar[str] = "model_parallel"

    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem."""
        graph, machine = problem.graph, problem.machine
        costs = [node_flops(graph, node) for node in graph.nodes]
        homes = balanced_blocks(costs, len(machine.processors))
        operators = tuple(
            (node.name, whole(graph, node, processor)) for node, processor in zip(graph.nodes, homes, strict=True)
        )
        return complete(problem, self.name, operators)


def balanced_blocks(costs: Sequence[int], parts: int) -> tuple[int, ...]:
    """The block of each item when a row of items is cut into contiguous blocks whose largest cost is least.

    The least largest cost is found by bisection: a bound can be kept if filling blocks from the left up to the
    bound needs no more than the blocks that there are. Every block gets an item as long as there are enough items.

    Args:
        costs: cost of each item, >= 0.
        parts: how many blocks.

    Returns:
        For each item the number of its block, ascending.
    """
    low, high = max(costs, default=0), sum(costs)
    while low < high:
        middle = (low + high) // 2
        if max(_fill(costs, parts, middle), default=0) < parts:
            high = middle
        else:
            low = middle + 1
    return _fill(costs, parts, low)


def _fill(costs: Sequence[int], parts: int, bound: int) -> tuple[int, ...]:
    blocks: list[int] = []
    block, filled = 0, 0
    for index, cost in enumerate(costs):
        # The second case leaves an item for each of the blocks that are still empty.
        if index and (filled + cost > bound or len(costs) - index < parts - block):
            block, filled = block + 1, 0
        blocks.append(block)
        filled += cost
    return tuple(blocks)
