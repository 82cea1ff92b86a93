"""The benchmark of TensorOpt's questions: what its tables say of frontiers that are there."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import frontier_questions
import pytest

import maniple as mp
from maniple.strategies.interface.plan_frontier import FrontierPoint

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30


def frontier(devices: int, points: list[tuple[float, int]]) -> mp.Frontier:
    graph = mp.Graph("layer")
    x, y = graph.input("x", (16, 8)), graph.input("y", (16, 8))
    graph.loss(graph.mse_loss(graph.linear(x, 8), y))
    plan = mp.search(graph, mp.Machine.preset(f"v100x{devices}"))
    made = [
        FrontierPoint(ms / 1e3, size, ms / 1e3, size, devices, replace(plan, seed=number))
        for number, (ms, size) in enumerate(points)
    ]
    return mp.Frontier(tuple(made), True, 0.0, 9, 3, (), 0.5, 1.0, 16 * GIB)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    frontier(2, [(40.0, GIB), (30.0, 2 * GIB)]).save(tmp_path / "toy-2.json")
    frontier(4, [(25.0, GIB // 8), (15.0, GIB)]).save(tmp_path / "toy-4.json")
    (tmp_path / f"toy-4-{GIB // 4}-single.json").write_text(json.dumps({"optcnn": [0.02, GIB]}))
    return tmp_path


def test_the_tables_answer_from_what_the_folder_has(folder: Path) -> None:
    told = frontier_questions.tables(folder, ["toy", "none"], search=False)
    fast, lean = "15.00 ms, 1.00 GiB", "25.00 ms, 0.12 GiB"
    assert f"| toy | 4 | 9 | 3 | 2 | {fast} | {lean} | {lean} | 2.00 | 0.50 |" in told
    # Of two devices no single search is there; of four one fits, and soap found none.
    assert "| toy | 4 | 15.00 | 0.25 | 25.00 | 1.67 | 20.00 (needs 1.00 GiB) | does not fit |" in told
    assert "| toy | 4: 25.00 ms | 2: 40.00 ms | 2: 30.00 ms |" in told
    assert "none" not in told.replace("none:", "")


def test_no_plan_within_the_limit_is_said_with_the_least(folder: Path) -> None:
    found = mp.Frontier.load(folder / "toy-2.json")
    told = frontier_questions.quarter_rows("toy", 2, found, {}, GIB // 2)
    assert told == "| toy | 2 | 30.00 | 0.50 | none: 1.00 GiB at least |  | does not fit | does not fit |"
