"""Two stages: the best pipeline of two, whatever more stages would reach.

Without a flush there are at least as many micro-batches as stages, and each starts all tasks once more. The search of
the least slowest stage does not look at how many stages it makes, so for few micro-batches it may find none that runs:

    four processors, 2 micro-batches     3 stages on 2 1 1     24.9 ms     needs a micro-batch more
                                         2 stages on 2 2       25.3 ms     runs

Stages end where a prefix of the graph's order does, one of all prefixes, on 1, 2, ... processors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maniple.strategies.pipeline.problem import Segmentation
from maniple.strategies.segmentation.pipeline_cost import stages
from maniple.strategies.segmentation.pipeline_space import NodeCosts, Part
from maniple.strategies.segmentation.throughput import fits

if TYPE_CHECKING:
    from maniple.strategies.pipeline.problem import SegmentationProblem

__all__: list[str] = []


def two_stages(problem: SegmentationProblem) -> Segmentation | None:
    """The pipeline of two stages on all processors whose slower one is fastest; None where none fits.

    Args:
        problem: of one level, whose replicas' synchronisation adds to their work.
    """
    costs, devices, count = NodeCosts.of(problem), problem.devices, len(problem.graph.nodes)
    if devices < 2 or count < 2:
        return None
    work = costs.work + costs.synchronization
    after = np.cumsum(work, axis=0)[:-1]  # of each prefix but all
    first = after[:, : devices - 1]
    second = (work.sum(axis=0) - after)[:, devices - 2 :: -1]
    for flat in np.argsort(np.maximum(first, second), axis=None, kind="stable").tolist():
        end, replicas = flat // (devices - 1) + 1, flat % (devices - 1) + 1
        parts = (Part(tuple(range(end)), ((0, replicas),)), Part(tuple(range(end, count)), ((1, devices - replicas),)))
        if fits(problem, parts):
            found = stages(problem, parts)
            slowest = max(stage.load_s for stage in found)
            return Segmentation(found, slowest, 0.0, False, count + 1, slowest)
    return None
