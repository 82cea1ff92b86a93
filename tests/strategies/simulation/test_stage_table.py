"""Stage tables: what stages do when, drawn from simulated times."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from maniple.process.error import RequestError
from maniple.strategies.simulation.stage_table import stage_table

F, B = 2, 3


def simulated(turns: dict[int, list[Any]], makespan: int, *, pipeline: object = "1f1b") -> Any:
    plan = SimpleNamespace(pipeline=pipeline)
    return SimpleNamespace(plan=plan, turns=lambda: turns, makespan_ns=makespan)


def test_the_table_of_the_docstring() -> None:
    """Two stages, three micro-batches, forward two ticks and backward three on stage 0, two on stage 1."""
    first = [("F", 0, 0, 2), ("F", 1, 2, 4), ("B", 0, 5, 8), ("F", 2, 8, 10), ("B", 1, 10, 13), ("B", 2, 14, 17)]
    second = [("F", 0, 2, 4), ("B", 0, 4, 6), ("F", 1, 6, 8), ("B", 1, 8, 10), ("F", 2, 10, 12), ("B", 2, 12, 14)]
    kinds = {"F": "forward", "B": "backward"}
    turns = {
        processor: [((stage, kinds[kind], part), begin, end) for kind, part, begin, end in rows]
        for processor, stage, rows in ((4, 0, first), (2, 1, second), (3, 1, second))
    }
    assert stage_table(simulated(turns, 17), 17) == [
        "stage 0   F0 F0 F1 F1 -- B0 B0 B0 F2 F2 B1 B1 B1 -- B2 B2 B2",
        "stage 1   -- -- F0 F0 B0 B0 F1 F1 B1 B1 F2 F2 B2 B2 -- -- --",
    ]


def test_a_slice_shows_what_is_done_most_of_it() -> None:
    turns = {0: [((0, "forward", 0), 0, 6), ((2, "forward", 0), 6, 15), ((2, "input_gradient", 0), 19, 20)]}
    assert stage_table(simulated(turns, 20), 2) == ["stages 0 2   0F0 2F0"]
    assert stage_table(simulated(turns, 20), 4) == ["stages 0 2   0F0 2F0 2F0 --"]


def test_a_plan_without_a_pipeline_is_refused() -> None:
    with pytest.raises(RequestError, match=r"plan: pipeline: expected one, whose stages take turns .* got null"):
        stage_table(simulated({}, 1, pipeline=None))
