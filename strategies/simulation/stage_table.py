"""Stage tables: what the stages of a pipeline do when, by the simulated times.

    stage 0   F0 F0 F1 F1 -- B0 B0 B0 F2 F2 B1 B1 B1 -- B2 B2 B2
    stage 1   -- -- F0 F0 B0 B0 F1 F1 B1 B1 F2 F2 B2 B2 -- -- --

A column is a slice of the step, and a cell is what the lane does most of it; a lane's only stage is not named. Of a
pipeline without a flush the ramp is drawn and some runs after it, and numbers are those of mini-batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniple.operators.pipeline_order.drawing import row_texts
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from maniple.strategies.simulation.simulation import Simulation

__all__: list[str] = []

COLUMNS = 32
"""So many slices a table has."""
LETTERS = {"input": "F", "forward": "F", "again": "R", "backward": "B", "input_gradient": "I", "weight_gradient": "W"}


def stage_table(simulation: Simulation, columns: int = COLUMNS) -> list[str]:
    """What each lane does in each slice of a simulated step.

    Args:
        simulation: of a plan with a pipeline.
        columns: how many slices.

    Raises:
        RequestError: the plan has no pipeline.
    """
    plan, taken = simulation.plan, simulation.turns()
    if plan.pipeline is None:
        raise RequestError("plan: pipeline: expected one, whose stages take turns that can be drawn; got null")
    slices: dict[int, list[dict[str, int]]] = {}
    stages: dict[int, set[int]] = {}
    last = max((end for rows in taken.values() for _, _, end in rows), default=0)
    width = max(1, -(-max(simulation.makespan_ns, last) // columns))
    for processor, rows in sorted(taken.items()):
        own = slices.setdefault(processor, [{} for _ in range(columns)])
        for (stage, kind, part), begin, end in rows:
            if kind not in LETTERS:  # copies and sums of weights
                continue
            stages.setdefault(processor, set()).add(stage)
            label = f"{stage}{LETTERS[kind]}{part}"
            for column in range(begin // width, min(columns, -(-end // width))):
                share = min(end, (column + 1) * width) - max(begin, column * width)
                own[column][label] = own[column].get(label, 0) + share
    lanes: dict[tuple[int, ...], int] = {}
    for processor in sorted(stages):  # of processors that share stages, the first is drawn
        lanes.setdefault(tuple(sorted(stages[processor])), processor)
    alone = all(len(lane) == 1 for lane in lanes)
    cells = [[_most(cell, width, alone=alone) for cell in slices[processor]] for _, processor in sorted(lanes.items())]
    heads = [f"stage {lane[0]}" if len(lane) == 1 else f"stages {' '.join(map(str, lane))}" for lane in sorted(lanes)]
    drawn = [row.split("   ", 1)[1] for row in row_texts("", cells)]
    longest = max(map(len, heads))
    return [f"{head:<{longest}}   {row}" for head, row in zip(heads, drawn, strict=True)]


def _most(cell: dict[str, int], width: int, *, alone: bool) -> str:
    """What is done most of a slice; empty if nothing for most of it."""
    label = max(cell, key=lambda name: (cell[name], name), default="")
    if 2 * sum(cell.values()) < width:
        return ""
    return label.lstrip("0123456789") if alone else label
