"""Orders as tables: a row for each lane, a column for each tick.

lane 0   F0 F1 -- B0 F2 B1 -- B2       1F1B, two stages: a lane's own stage is not named
lane 1   -- F0 B0 F1 B1 F2 B2 --

lane 0   0F0 0F1 2F0 2F1 --  2B0 ...   two stages in a lane: they are
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maniple.operators.pipeline_order.pipeline_order import PipelineOrder
    from maniple.operators.pipeline_order.stage_graph import StageGraph

__all__: list[str] = []

_LEAST = 2


def table(order: PipelineOrder, graph: StageGraph) -> str:
    """What each lane does in every tick, where every action takes one.

    Args:
        order: the order.
        graph: the stages.

    Raises:
        RequestError: the lanes cannot meet.
    """
    ticks = order.ticks(graph)
    alone = all(len(lane) == 1 for lane in graph.lanes)
    rows = []
    for number in range(len(order.lanes)):
        taken = [tick[number] for tick in ticks]
        rows.append(["" if a is None else f"{a.kind}{a.micro_batch}" if alone else str(a) for a in taken])
    return "\n".join(row_texts("lane", rows))


def row_texts(what: str, rows: list[list[str]]) -> list[str]:
    """Rows of a table, each headed by what it is and its number; where nothing is, a dash of two.

    Args:
        what: a row is.
        rows: the cells, empty where nothing is.
    """
    wide = max([_LEAST, *(len(cell) for row in rows for cell in row)])
    head = max(len(f"{what} {number}") for number in range(len(rows)))
    return [
        f"{f'{what} {number}':<{head}}   " + " ".join(f"{cell or '--':<{wide}}" for cell in row).rstrip()
        for number, row in enumerate(rows)
    ]
