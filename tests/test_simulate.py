"""`maniple simulate`: one JSON object that agrees with the plan's bytes and memory, a timeline, and wrong requests."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from maniple import cli
from maniple.models import model
from maniple.operators.plan.plan import Plan
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.named.data_parallel import DataParallel
from maniple.strategies.simulation.simulation import Simulation

pytestmark = pytest.mark.simulator


def status_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ending:
        cli.main(arguments)
    assert isinstance(ending.value.code, int)
    return ending.value.code


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    graph, machine = model("digits_cnn", batch=16), Machine.preset("p100x4")
    found = DataParallel().plan(Problem(graph, machine))
    said = (("model", "digits_cnn"), ("batch", 16), ("machine", "p100x4"))
    replace(found, explanation=(("", said),)).save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_json_is_one_object_with_what_the_simulation_says(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    timeline = tmp_path / "step.json"
    assert status_of("simulate", str(plan), "--json", "--timeline", str(timeline)) == 0
    told = json.loads(capsys.readouterr().out)
    graph, machine = model("digits_cnn", batch=16), Machine.preset("p100x4")
    found = Simulation(graph, machine, DataParallel().plan(Problem(graph, machine))).predict()
    assert told["step_s"] == found.step_ns / 1e9
    assert (told["bytes"], told["rows"]) == (found.bytes, found.rows)
    assert told["peak_memory_bytes"] == max(found.memory_bytes)
    assert told["simulate_s"] > 0
    assert told["critical_path"][-1]["end_s"] == told["step_s"]
    assert sum(told["sources"].values()) == told["rows"]
    drawn = json.loads(timeline.read_text(encoding="utf-8"))["traceEvents"]
    for memory, peak in enumerate(told["memory_peaks"]):
        counted = [
            (entry["ts"] / 1e6, entry["args"]["bytes"])
            for entry in drawn
            if entry["ph"] == "C" and (entry["pid"], entry["name"]) == (memory, f"memory {memory}")
        ]
        assert max(size for _, size in counted) == peak["bytes"]
        assert counted[-1] == (told["step_s"], 0)
        assert min(at for at, size in counted if size == peak["bytes"]) == pytest.approx(peak["at_s"])
        assert 0 < sum(peak["lives"].values()) <= peak["bytes"]
        assert abs(peak["bytes"] - told["memory_bytes"][memory]) <= 0.1 * told["memory_bytes"][memory]


def test_text_names_the_busiest_links_and_the_critical_path(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("simulate", str(plan)) == 0
    shown = capsys.readouterr().out
    assert "plan by data_parallel" in shown
    assert "0 -> 1" in shown
    assert "conv2d.forward" in shown
    assert re.search(r"memory [0-3] is fullest at +[0-9.]+ ms, of [0-9.]+ MB:\n +[0-9.]+ MB  linear\.weight", shown)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.json"], "missing.json: cannot be read"),
        (["PLAN", "--model", "digits_cn"], "did you mean 'digits_cnn'"),
        (["PLAN", "--model", "missing.py:small"], "the file missing.py does not exist"),
        (["PLAN", "--model", "MODEL:smal"], "did you mean 'small'"),
        (["PLAN", "--model", "MODEL:sour"], "raised ValueError: the milk is sour"),
        (["PLAN", "--batch", "0"], "--batch: expected at least 1 sample"),
        (["PLAN", "--machine", "p10x4"], "there is no GPU 'p10'"),
        (["PLAN", "--batch", "32"], "plan: graph: the plan is for the graph"),
        (["PLAN", "--machine", "p100x2"], "processor 2 does not exist"),
        (["PLAN", "--costs", "none.json"], "none.json: cannot be read"),
    ],
)
def test_wrong_requests(arguments: list[str], said: str, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = plan.parent / "model.py"
    model.write_text("def small(): ...\n\ndef sour():\n    raise ValueError('the milk is sour')\n", encoding="utf-8")
    named = [str(plan) if word == "PLAN" else word.replace("MODEL", str(model)) for word in arguments]
    assert status_of("simulate", *named) == 2
    assert said in capsys.readouterr().err


def test_a_plan_that_does_not_say_its_model_needs_the_option(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(plan.read_text(encoding="utf-8"))
    document["explanation"] = {}
    plan.write_text(json.dumps(document), encoding="utf-8")
    assert status_of("simulate", str(plan), "--machine", "p100x4") == 2
    assert "name it with --model" in capsys.readouterr().err


def test_the_optimizer_of_a_search_is_that_of_its_prediction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan says what it was found for; another optimizer is asked for by name, and one that is not there refused."""
    path, found = str(tmp_path / "found.json"), ("--machine", "p100x4", "--proposals", "20", "--batch", "16", "--json")
    status_of("search", "digits_cnn", *found, "--optimizer", "adamw", "-o", path)
    capsys.readouterr()
    held = []
    for asked in ((), ("--optimizer", "adamw"), ("--optimizer", "sgd")):
        assert status_of("simulate", path, "--json", *asked) == 0
        held.append(json.loads(capsys.readouterr().out)["peak_memory_bytes"])
    assert held[0] == held[1] > held[2]
    assert held[0] == Plan.load(Path(path)).predicted.memory_bytes
    assert status_of("simulate", path, "--optimizer", "adamv") == 2
    assert "no optimizer 'adamv'; did you mean 'adam'?" in capsys.readouterr().err
