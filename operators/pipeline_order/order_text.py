"""Orders as text: a row for each lane, its actions in order.

    0F0,0F1,,,0B0,,0B1        torch.distributed.pipelining's CSV of actions: what is empty is time that passes
    ,1F0,1B0,1F1,1B1

    0F0 0F1 0B0 0B1; 1F0 1B0 1F1 1B1        the same in one line, as plans have it

Both are read by the same rules: rows end with a line or a semicolon, actions with a comma or a space, and empty cells
mean nothing, for an order says who is next and not when. Transfers and updates are not written, so of torch's two forms
it is the one named ``compute_only``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from maniple.operators.pipeline_order.action import Action
from maniple.operators.pipeline_order.pipeline_order import MisplacedActionError, PipelineOrder
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from maniple.operators.pipeline_order.stage_graph import StageGraph

__all__: list[str] = []

_ROW: Final = re.compile(r"[;\n]")
_CELL: Final = re.compile(r"[,\s]+")


def is_text(order: str) -> bool:
    """Whether a plan's order is written out, and not a name."""
    return any(mark in order for mark in " ,;\n")


def parse(text: str, name: str = "order") -> PipelineOrder:
    """The order of a text; as many stages and micro-batches as it speaks of.

    Args:
        text: rows of actions.
        name: what messages call it: a file or a key.

    Raises:
        RequestError: it has no actions, an unknown one, or is no order; the message has the line.
    """
    rows = _ROW.split(text)
    while rows and not _words(rows[-1]):
        rows.pop()
    lanes = []
    for number, row in enumerate(rows, 1):
        lane = tuple(Action.parse(word, f"{name}: line {number}") for word in _words(row))
        if not lane:
            raise RequestError(f"{name}: line {number}: expected the actions of a lane, got none")
        lanes.append(lane)
    if not lanes:
        raise RequestError(f"{name}: expected a line of actions for each lane, such as 0F0,0B0; got nothing")
    stages = 1 + max(action.stage for lane in lanes for action in lane)
    micro_batches = 1 + max(action.micro_batch for lane in lanes for action in lane)
    try:
        return PipelineOrder(tuple(lanes), stages, micro_batches)
    except MisplacedActionError as error:
        raise RequestError(f"{name}: line {error.lane + 1}: {error}") from error
    except RequestError as error:
        raise RequestError(f"{name}: {error}") from error


def to_text(order: PipelineOrder) -> str:
    """An order in one line."""
    return "; ".join(" ".join(map(str, lane)) for lane in order.lanes)


def to_csv(order: PipelineOrder, graph: StageGraph) -> str:
    """An order as torch.distributed.pipelining reads it, with time that passes as empty cells.

    Args:
        order: the order; torch knows no action of the kind R.
        graph: the stages.

    Raises:
        RequestError: the lanes cannot meet.
    """
    rows = zip(*order.ticks(graph), strict=True)
    return "".join(",".join("" if a is None else str(a) for a in row) + "\n" for row in rows)


def _words(row: str) -> list[str]:
    return [word for word in _CELL.split(row) if word]
