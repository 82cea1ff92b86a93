"""Spatial parallelism: images are cut by height, so that convolutions exchange only the rows next to a cut.

operator              degrees  processors
conv2d, relu, pool    y=2      p0 p1
flatten, linear, loss b=2      p0 p1
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from maniple.strategies.interface.placement import complete, split_axis, split_sample
from maniple.strategies.interface.strategy import AbstractDirectStrategy, Problem

if TYPE_CHECKING:
    from maniple.operators.plan.plan import Plan

__all__: list[str] = []

_HEIGHT = 2
_IMAGE_DIMENSIONS = 4


@final
class Spatial(AbstractDirectStrategy):
    """Splits operators whose results are images by height, all others by sample."""

    name: ClassVar[str] = "spatial"

    def plan(self, problem: Problem) -> Plan:
        """The plan for a problem."""
        graph, machine = problem.graph, problem.machine
        operators = tuple(
            (
                node.name,
                split_axis(graph, node, _HEIGHT, machine)
                if len(graph.tensors[node.results[0]].shape) == _IMAGE_DIMENSIONS
                else split_sample(graph, node, machine),
            )
            for node in graph.nodes
        )
        return complete(problem, self.name, operators)
