"""The command frontier, and search with an objective: what they print, and how they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import maniple as mp
from maniple import cli

pytestmark = pytest.mark.simulator

MODEL = """
import maniple as mp

def small(width=24):
    graph = mp.Graph("small")
    x, y = graph.input("x", (8, 24)), graph.input("y", (8,), dtype="int64")
    for _ in range(2):
        x = graph.relu(graph.linear(x, width))
    graph.loss(graph.cross_entropy(graph.linear(x, 4), y))
    return graph

def other():
    return small(48)
"""


def status_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ending:
        cli.main(arguments)
    assert isinstance(ending.value.code, int)
    return ending.value.code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, its frontiers on two and on four processors, and one of another graph."""
    folder = tmp_path_factory.mktemp("frontiers")
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    for name, source, machine in (
        ("two", "small", "p100x2"),
        ("four", "small", "p100x4"),
        ("other", "other", "p100x2"),
    ):
        asked = [f"{folder}/model.py:{source}", "--machine", machine, "--objective", "pareto"]
        assert status_of("search", *asked, "-o", f"{folder}/{name}.json") == 0
    return folder


def test_json_has_its_keys_and_the_points_of_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [f"{folder}/model.py:small", "--machine", "p100x4", "--objective", "pareto", "--json"]
    assert status_of("search", *asked, "-o", f"{folder}/again.json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {"points", "exact", "epsilon", "search_s"} <= set(found)
    assert found["model_points"] >= found["simulated"] >= len(found["points"])
    assert found["exact"] is True
    assert found["epsilon"] <= 0.01
    assert found["search_s"] > 0
    assert all(
        {"step_s", "peak_memory_bytes", "model_s", "model_bytes", "plan"} <= set(point) for point in found["points"]
    )
    kept = mp.Frontier.load(folder / "again.json")
    assert [point["plan"] for point in found["points"]] == [point.plan.to_json() for point in kept]
    assert kept == mp.Frontier.load(folder / "four.json")


def test_the_table_has_a_row_for_each_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("frontier", f"{folder}/two.json", f"{folder}/four.json") == 0
    shown = capsys.readouterr().out
    both = mp.Frontier.load(folder / "two.json") | mp.Frontier.load(folder / "four.json")
    assert both.devices == (2, 4)
    rows = shown.partition("\n\n")[0].splitlines()[1:]
    assert [int(row.split()[0]) for row in rows] == [point.devices for point in both]
    assert f"the best of {both.simulated} simulated of {both.model_points} points of the additive model" in shown
    assert "Kendall's tau" in shown


def test_what_is_taken_is_written_and_simulates_as_it_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, plan = [f"{folder}/two.json", f"{folder}/four.json"], f"{folder}/plan.json"
    whole = mp.Frontier.load(files[0]) | mp.Frontier.load(files[1])
    for asked, wanted in (
        (["--memory", "8GiB"], whole.best(8 * 2**30)),
        (["--knee"], whole.knee()),
        (["--devices", "2"], whole.at(2).best()),
        (["--fewest", "--memory", "1GiB"], whole.fewest(2**30)),
    ):
        assert status_of("frontier", *files, *asked, "-o", plan, "--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert mp.Plan.load(plan) == wanted
        assert told["plan"] == wanted.to_json()
        assert status_of("simulate", plan, "--json") == 0
        simulated = json.loads(capsys.readouterr().out)
        assert (simulated["step_s"], simulated["peak_memory_bytes"]) == (told["step_s"], told["peak_memory_bytes"])


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["four.json", "--memory", "100"], "no plan fits in 100 bytes a device: the least that any needs is"),
        (["four.json", "--memory", "0"], "--memory: expected more than 0 bytes"),
        (["four.json", "--devices", "2"], "no plan of this frontier uses at most 2 devices: expected 4 or more"),
        (["four.json", "--devices", "0"], "--devices: expected at least 1, got 0"),
        (["four.json", "--knee", "--memory", "1GiB"], "--knee chooses a plan by itself"),
        (["four.json", "-o", "plan.json"], "-o writes one plan: say which"),
        (["four.json", "other.json"], "the frontiers are of different graphs"),
        (["model.py"], "not a whole JSON document"),
        (["none.json"], "cannot be read"),
    ],
)
def test_a_wrong_question_is_refused(
    folder: Path, asked: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"{folder}/{word}" if word.endswith((".json", ".py")) else word for word in asked]
    assert status_of("frontier", *arguments) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--objective", "speed"], "objective 'speed' is no choice"),
        (["--objective", "memory", "--strategy", "optcnn"], "does not know the objective 'memory'"),
        (["--objective", "pareto", "--memory", "100"], "the least that any needs is"),
        (["--objective", "memory", "--memory", "100"], "does not fit in memory"),
        (["--objective", "pareto", "--machine", "v100x0"], "machine 'v100x0': expected"),
        (["--objective", "pareto", "--space", "spill"], "does not choose 'spill'; choices: cube, recompute, stages"),
        (["--objective", "pareto", "--space", "cube"], "expected q^3 processors, such as 8, 27 or 64, got 2"),
        (["--strategy", "soap", "--space", "recompute"], "'soap' does not choose 'recompute'; strategy 'pareto'"),
    ],
)
def test_a_wrong_objective_is_refused(
    folder: Path, asked: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of("search", f"{folder}/model.py:small", "--machine", "p100x2", *asked) == 2
    assert told in capsys.readouterr().err
