"""The baselines of augmented-antichain task segmentation: splits of the line of layers by one measure.

The seed paper names them handsplit_mp (equal numbers of layers), cudasize_mp (equal memory) and hashrate_mp (equal
compute). Each measure is split as evenly as a line can be: the largest block is the least possible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.strategies.named.model_parallel import balanced_blocks
from maniple.strategies.pipeline.problem import Segmentation
from maniple.strategies.segmentation.pipeline_cost import stages
from maniple.strategies.segmentation.pipeline_space import Part

if TYPE_CHECKING:
    from collections.abc import Callable

    from maniple.strategies.pipeline.cost_graph import CostNode
    from maniple.strategies.pipeline.problem import SegmentationProblem

__all__: list[str] = []

MEASURES: dict[str, Callable[[CostNode], int]] = {
    "layers": lambda _: 1,
    "memory": lambda node: node.parameter_bytes + node.stored_bytes,
    "compute": lambda node: round(node.compute_s * 1e12),
}
"""What each baseline makes even."""


def baseline(problem: SegmentationProblem, measure: str) -> Segmentation:
    """The pipeline of a baseline: no replicas, a stage for every device.

    Args:
        problem: what is asked; memory limits and the goal are not regarded.
        measure: a name of ``MEASURES``.
    """
    weigh = MEASURES[measure]
    blocks = balanced_blocks([weigh(node) for node in problem.graph.nodes], problem.devices)
    # The graph's order is topological, so every block boundary is an ideal.
    parts = tuple(
        Part(tuple(node for node, home in enumerate(blocks) if home == block), ((block, 1),))
        for block in sorted(set(blocks))
    )
    found = stages(problem, parts)
    bottleneck = max(stage.load_s for stage in found)
    return Segmentation(found, bottleneck, 0.0, False, len(blocks) + 1, bottleneck)
