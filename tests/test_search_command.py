"""The commands search, explain and compare: what they print, and how they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from maniple import cli, search_command
from maniple.kept_graph import planning_graph
from maniple.operators.plan.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.costs import NamedCosts

pytestmark = pytest.mark.simulator

MODEL = """
import maniple as mp

def small():
    graph = mp.Graph("small")
    x, y = graph.input("x", (8, 4)), graph.input("y", (8,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(x, 3), y))
    return graph

def wide():
    graph = mp.Graph("wide")
    x, y = graph.input("x", (8, 64)), graph.input("y", (8,), dtype="int64")
    h = graph.linear(graph.relu(graph.linear(graph.relu(graph.linear(x, 64)), 64)), 64)
    graph.loss(graph.cross_entropy(h, y))
    return graph

def sour():
    raise ValueError("the milk is sour")

def number():
    return 3
"""

PIPEDREAM = ("--machine", "cpu:2", "--strategy", "pipedream", "--semantics")
KEYS = [
    "strategy",
    "model",
    "machine",
    "step_s",
    "data_parallel_step_s",
    "bytes",
    "peak_memory_bytes",
    "lower_bound_s",
    "exact",
    "search_s",
    "proposals",
    "seed",
    "sources",
    "plan",
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL, encoding="utf-8")
    return path


def status_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ending:
        cli.main(arguments)
    assert isinstance(ending.value.code, int)
    return ending.value.code


def searched(*arguments: str) -> int:
    return status_of("search", *arguments, "--proposals", "40")


def test_json_has_exactly_its_keys_and_the_plan_is_the_saved_one(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "plan.json"
    assert searched(f"{model}:small", "--machine", "cpu:2x1", "--seed", "3", "-o", str(saved), "--json") == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert shown.err == ""
    assert list(document) == KEYS
    assert document["plan"] == json.loads(saved.read_text(encoding="utf-8"))
    assert (document["strategy"], document["seed"], document["proposals"]) == ("soap", 3, 40)
    assert 0 < document["lower_bound_s"] <= document["step_s"] <= document["data_parallel_step_s"]
    assert Plan.load(saved).predicted.step_s == document["step_s"]


def test_a_search_of_a_model_that_was_imported_before_imports_no_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph is kept; searching, what the runtime would allocate, the bound and the table need no torch either."""
    monkeypatch.setenv("MANIPLE_CACHE", str(tmp_path))
    planning_graph("lenet", 8)
    asked = ["search", "lenet", "--machine", "p100x4", "--batch", "8", "--proposals", "40", "-o", f"{tmp_path}/plan"]
    code = f"import sys, maniple.cli\ntry: maniple.cli.main({asked})\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=900)
    assert done.stdout.splitlines()[-1] == "False"
    assert Plan.load(tmp_path / "plan").predicted.memory_bytes


def test_simulate_says_what_search_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "plan.json"
    assert searched("digits_cnn", "--machine", "cpu:2x1", "--batch", "16", "-o", str(saved), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert status_of("simulate", str(saved), "--json") == 0
    simulated = json.loads(capsys.readouterr().out)
    assert [simulated[key] for key in ("step_s", "bytes", "peak_memory_bytes")] == [
        found[key] for key in ("step_s", "bytes", "peak_memory_bytes")
    ]


def test_homes_by_a_stage_of_zero(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is predicted is predicted with them; matrices that Muon updates stay whole, by a stage's word."""
    saved, peaks = tmp_path / "plan.json", {}
    asked = (f"{model}:wide", "--machine", "cpu:2x1", "--strategy", "data_parallel", "--json", "-o", str(saved))
    for zero, optimizer in ((0, "adamw"), (1, "adamw"), (3, "adamw"), (3, "muon")):
        assert status_of("search", *asked, "--zero", str(zero), "--optimizer", optimizer) == 0
        document, plan = json.loads(capsys.readouterr().out), Plan.load(saved)
        peaks[zero, optimizer] = document["peak_memory_bytes"]
        home = plan.weight("linear.weight")
        assert (home.replicas, home.copy) == (2 if zero == 0 else 1, "pass" if zero == 3 else "kept")
        assert home.is_cut == (zero > 0 and optimizer == "adamw")
        assert status_of("simulate", str(saved), "--json") == 0
        assert json.loads(capsys.readouterr().out)["peak_memory_bytes"] == peaks[zero, optimizer]
    assert peaks[3, "adamw"] < peaks[1, "adamw"] < peaks[0, "adamw"]
    for wrong, problem in (
        (("--zero", "4"), "zero: expected a stage of 0, 1, 2, 3, got 4"),
        (("--zero", "1", "--objective", "pareto", "--strategy", "pareto"), "--zero: expected a search of one plan"),
        (("--optimizer", "muo"), "--optimizer: no optimizer 'muo'"),
    ):
        assert status_of("search", *asked, *wrong) == 2
        assert problem in json.loads(capsys.readouterr().out)["error"]["message"]


def test_the_text_names_operators_speed_up_and_bound(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert searched(f"{model}:small", "--machine", "cpu:2") == 0
    shown = capsys.readouterr().out
    assert "operator" in shown.splitlines()[0]
    assert "cross_entropy" in shown
    assert "the speed of data parallelism" in shown
    assert "no plan is faster than" in shown
    assert "soap, seed 0: 40 proposals" in shown
    assert status_of("search", f"{model}:small", "--machine", "cpu:2", "--strategy", "data_parallel") == 0
    assert "\ndata_parallel: 0 proposals" in capsys.readouterr().out


def test_a_models_file_imports_what_lies_beside_it(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a script would; also late, when the function is called."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (model.parent / "made_early.py").write_text("import maniple as mp")
    (model.parent / "made_late.py").write_text("from model import small")
    model.write_text(
        f"from made_early import mp\n{MODEL}\ndef late():\n    from made_late import small\n    return small()\n"
    )
    try:
        assert searched(f"{model}:late", "--machine", "cpu:2", "--json") == 0
    finally:
        for name in ("made_early", "made_late", "model"):
            sys.modules.pop(name, None)
    assert json.loads(capsys.readouterr().out)["proposals"] == 40


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["digits_cn", "--machine", "cpu:2"], "did you mean 'digits_cnn'"),
        (["digits_cnn", "--machine", "cpux2"], "cpux2"),
        (["digits_cnn", "--machine", "cpu:2", "--strategy", "soup"], "did you mean 'soap'"),
        (["digits_cnn", "--machine", "cpu:2", "--budget", "0"], "budget: expected more than 0 seconds"),
        (["digits_cnn", "--machine", "cpu:2", "--budget", "-1"], "budget: expected more than 0 seconds"),
        (["digits_cnn", "--machine", "cpu:2", "--budget", "nan"], "budget: expected more than 0 seconds"),
        (["digits_cnn", "--machine", "cpu:2", "--batch", "0"], "--batch: expected at least 1 sample"),
        (["digits_cnn", "--machine", "cpu:2", "--memory", "lots"], "--memory: expected more than 0 bytes"),
        (["digits_cnn", "--machine", "cpu:2", "--memory", "1KiB"], "stands in the way"),
        (["digits_cnn", *PIPEDREAM, "weights=stahs"], "got 'stahs'; did you mean 'stash'"),
        (
            ["mlp", *PIPEDREAM[2:], "weights=stash", "--machine", "cpu:1"],
            "expected a machine with at least 2 processors",
        ),
        (["digits_cnn"], "--machine"),
        (["missing.py:small", "--machine", "cpu:2"], "the file missing.py does not exist"),
        (["MODEL", "--machine", "cpu:2"], "which function of it gives the model?"),
        (["MODEL:smal", "--machine", "cpu:2"], "did you mean 'small'"),
        (["MODEL:sour", "--machine", "cpu:2"], "raised ValueError: the milk is sour"),
        (["MODEL:number", "--machine", "cpu:2"], "to return a Graph, got int"),
    ],
)
def test_a_wrong_request_is_one_line_and_status_2(
    arguments: list[str], said: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert searched(*(word.replace("MODEL", str(model)) for word in arguments)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert said in shown.err


def test_explain_shows_all_operators_or_one(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "plan.json"
    searched(f"{model}:small", "--machine", "cpu:2", "-o", str(saved))
    capsys.readouterr()
    assert status_of("explain", str(saved)) == 0
    assert "plan by soap, seed 0; semantics: exact" in capsys.readouterr().out
    assert status_of("explain", str(saved), "--operator", "linear", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["plan", "reasons", "operators"]
    assert list(document["operators"]) == ["linear"]
    assert document["reasons"]["proposals"] == 40
    assert status_of("explain", str(saved), "--operator", "linea") == 2
    assert "did you mean 'linear'" in capsys.readouterr().err


def test_explain_says_what_gpus_capture(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "plan.json"
    searched(f"{model}:small", "--machine", "a100x1", "-o", str(saved))
    capsys.readouterr()
    assert status_of("explain", str(saved), "--captures") == 0
    told = capsys.readouterr().out
    assert told.startswith("GPU 0: ")
    assert "\n  captured: " in told
    assert ": every run takes another tensor of the program's\n" in told
    assert status_of("explain", str(saved), "--captures", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["captures"]
    assert {row["processor"] for row in rows} == {0}
    assert all(len(row["tasks"]) == 1 for row in rows if row["eager"])
    assert status_of("explain", str(saved), "--captures", "--operator", "linear") == 2
    assert "--captures: expected no --operator" in capsys.readouterr().err
    searched(f"{model}:small", "--machine", "cpu:2", "-o", str(saved))
    capsys.readouterr()
    assert status_of("explain", str(saved), "--captures") == 0
    assert capsys.readouterr().out == "no processor of the plan's machine is a GPU: nothing is captured\n"


def test_explain_of_an_operator_names_its_runner_up(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "plan.json"
    assert searched(f"{model}:small", "--machine", "cpu:2x1", "-o", str(saved)) == 0
    capsys.readouterr()
    assert status_of("explain", str(saved), "--operator", "linear", "--json") == 0
    reasons = json.loads(capsys.readouterr().out)["operators"]["linear"]["reasons"]
    chain = "chain, where torch compiles"
    assert list(reasons) == ["step", "runner-up", "step with the runner-up", "data parallel", chain]
    assert reasons[chain].startswith("none: it is no link")
    assert reasons["data parallel"].startswith("b=2 on 0 1: slower by ")
    before, after = (float(reasons[term].split()[0]) for term in ("step", "step with the runner-up"))
    assert before == pytest.approx(1e3 * (Plan.load(saved).predicted.step_s or 0.0), abs=1e-3)
    assert before <= after
    assert status_of("explain", str(saved), "--operator", "linear") == 0
    assert "  runner-up: " in capsys.readouterr().out


def test_auto_prints_the_table_of_all(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert searched(f"{model}:small", "--machine", "cpu:2", "--strategy", "auto") == 0
    lines = capsys.readouterr().out.splitlines()
    names = [
        line.split()[0] for line in lines[lines.index(next(ln for ln in lines if ln.startswith("strategy"))) + 1 :]
    ]
    assert names[:5] == ["data_parallel", "expert", "model_parallel", "spatial", "optcnn"]


def test_a_plan_for_a_model_of_a_file_is_simulated(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "plan.json"
    assert searched(f"{model}:small", "--machine", "cpu:2x1", "-o", str(saved), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert status_of("simulate", str(saved), "--json") == 0
    assert json.loads(capsys.readouterr().out)["step_s"] == found["step_s"]


@pytest.mark.parametrize("command", ["explain", "compare", "simulate"])
def test_commands_refuse_plans_that_are_not_there(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(command, str(tmp_path / "none.json")) == 2
    assert "none.json: cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    "strategy", ["data_parallel", "expert", "model_parallel", "spatial", "optcnn", "random", "auto"]
)
def test_no_strategy_gives_a_plan_that_does_not_fit(
    strategy: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (f"{model}:small", "--machine", "cpu:2", "--strategy", strategy, "--memory", "500")
    assert searched(*arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "in memory 0, which holds 500; operator " in shown.err
    assert "stands in the way with" in shown.err


def test_compare_puts_plans_of_one_graph_side_by_side(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(tmp_path / f"{name}.json") for name in ("data_parallel", "model_parallel")]
    for path in paths:
        searched(f"{model}:small", "--machine", "cpu:2", "--strategy", Path(path).stem, "-o", path)
    other = str(tmp_path / "other.json")
    searched(f"{model}:small", "--machine", "cpu:2", "--batch", "4", "-o", other)
    capsys.readouterr()
    assert status_of("compare", *paths, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [plan["strategy"] for plan in document["plans"]] == ["data_parallel", "model_parallel"]
    assert all(plan["step_s"] > 0 for plan in document["plans"])
    assert document["operators"]["linear"] == ["b=2 on 2", "whole on 1"]
    assert status_of("compare", *paths) == 0
    shown = capsys.readouterr().out
    assert "b=2 on 2" in shown
    assert "step_s" in shown
    assert status_of("compare", paths[0], other) == 2
    assert "is for another graph than" in capsys.readouterr().err


@pytest.mark.parametrize("interrupted", [False, True])
def test_measuring_is_not_counted_as_searching(monkeypatch: pytest.MonkeyPatch, *, interrupted: bool) -> None:
    """Neither before the search begins nor after it ends, though a user has no patience for that."""
    now, said = [0.0], list[str]()
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    class Slow:
        def survey(self, within_s: float) -> None:
            now[0] += 60.0

        def side_by_side(self, plans: Sequence[Plan], within_s: float) -> None:
            now[0] += 30.0 * len(plans)
            if interrupted:
                raise KeyboardInterrupt

    tasks = search_command._Clocked(cast("NamedCosts", Slow()), said.append)
    tasks.survey()
    now[0] += 10.0
    with pytest.raises(KeyboardInterrupt) if interrupted else nullcontext():
        tasks.side_by_side([Plan("", "", (), ())] * 2)
    now[0] += 1.0
    assert tasks.since_s == 11.0
    assert said == ["timing the tasks of the 2 fastest plans side by side"]
