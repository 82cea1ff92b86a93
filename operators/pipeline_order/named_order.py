"""The orders that have a name, each with the stages that it is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maniple.operators.pipeline_order import flush
from maniple.process.error import RequestError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from maniple.operators.pipeline_order.pipeline_order import PipelineOrder
    from maniple.operators.pipeline_order.stage_graph import StageGraph

__all__: list[str] = []

ORDERS: Final[Mapping[str, Callable[[StageGraph, int], PipelineOrder]]] = {
    "sequential": flush.sequential,
    "gpipe": flush.gpipe,
    "1f1b": flush.one_forward_one_backward,
    "early_backward": flush.early_backward,
}
"""Each a function of the stages and the number of micro-batches."""

ASYNCHRONOUS: Final = ("pipedream", "stash", "2bw", "spectrain", "xpipe", "pipemare")
"""Orders without a flush, which are not built."""


def named_order(name: str, graph: StageGraph, micro_batches: int) -> PipelineOrder:
    """The order of a name.

    Args:
        name: of one of `ORDERS`.
        graph: the stages.
        micro_batches: how many.

    Raises:
        RequestError: there is no such order, or it is not for such stages.
    """
    if name in ASYNCHRONOUS:
        raise RequestError(
            f"order {name!r} has no flush: micro-batches of a step would be computed with weights of steps before, and "
            f"such orders are not built; choices: {', '.join(sorted(ORDERS))}"
        )
    if name not in ORDERS:
        raise RequestError(f"order {name!r} is unknown{nearest(name, ORDERS)}")
    return ORDERS[name](graph, micro_batches)
