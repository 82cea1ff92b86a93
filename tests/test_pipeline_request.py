"""`maniple search --order --micro-batches`, and `maniple simulate --draw` of what it found."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from maniple import cli
from maniple.models import model
from maniple.operators.plan.plan import PipelinePlan, Plan
from maniple.pipeline_request import in_turn
from maniple.process.error import RequestError
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.strategy import Problem
from maniple.strategies.named.data_parallel import DataParallel
from maniple.strategies.segmentation.antichain import Antichain

pytestmark = pytest.mark.simulator
GRAPH, MACHINE = model("digits_cnn", batch=16), Machine.preset("cpu:2x1")
PIPELINE = Antichain().plan(Problem(GRAPH, MACHINE, order="1f1b", micro_batches=8))
WHOLE = DataParallel().plan(Problem(GRAPH, MACHINE))
ORDER = "0F0,0F1,,,0B0,0B1\n,1F0,1B0,1F1,1B1\n"


def status_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ending:
        cli.main(arguments)
    assert isinstance(ending.value.code, int)
    return ending.value.code


def test_an_order_and_a_number_are_those_of_the_plan_unless_they_are_given(tmp_path: Path) -> None:
    assert PIPELINE.pipeline == PipelinePlan("1f1b", 8)
    assert in_turn(PIPELINE, GRAPH, MACHINE, None, None) is PIPELINE
    assert in_turn(PIPELINE, GRAPH, MACHINE, "gpipe", None).pipeline == PipelinePlan("gpipe", 8)
    assert in_turn(PIPELINE, GRAPH, MACHINE, None, 3).pipeline == PipelinePlan("1f1b", 3)
    file = tmp_path / "order.csv"
    file.write_text(ORDER)
    text = "0F0 0F1 0B0 0B1; 1F0 1B0 1F1 1B1"
    assert in_turn(PIPELINE, GRAPH, MACHINE, str(file), None).pipeline == PipelinePlan(text, 2)


def test_a_plan_without_stages_accumulates() -> None:
    assert in_turn(WHOLE, GRAPH, MACHINE, None, 4).pipeline == PipelinePlan("1f1b", 4)
    with pytest.raises(RequestError, match="--order: expected --micro-batches too"):
        in_turn(WHOLE, GRAPH, MACHINE, "gpipe", None)


@pytest.mark.parametrize(
    ("order", "micro_batches", "message"),
    [
        ("1f1", 2, r"order '1f1' is unknown; did you mean '1f1b'\?"),
        ("stash", 2, "order 'stash' has no flush"),
        ("1f1b", 17, r"pipeline\.micro_batches: expected at most 16, the samples of a batch, got 17"),
        ("1f1b", 0, r"expected (an integer >= 1|at least 1)"),
        ("v_zb", 2, "order 'v_zb' has a chain of 4 stages"),
        ("nowhere.csv", None, "--order: nowhere.csv cannot be read"),
    ],
)
def test_wrong_requests_are_refused(order: str, micro_batches: int | None, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        in_turn(PIPELINE, GRAPH, MACHINE, order, micro_batches)


def test_a_file_that_is_no_order_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "order.csv"
    file.write_text(ORDER.replace("1B1", "1X1"))
    with pytest.raises(RequestError, match=r"order.csv: line 2: '1X1' is of the unknown kind 'X'"):
        in_turn(PIPELINE, GRAPH, MACHINE, str(file), None)


@pytest.mark.parametrize(
    ("lanes", "said"),
    [
        ("0F0,0F1,,,0B0\n,1F0,1B0,1F1,1B1\n", r"order.csv: line 1: .*: 0B1 is missing\n  0F0 0F1 0B0 ><"),
        ("0F0,0F1,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n", r"line 1: .* 0F1 stands twice\n  0F0 0F1 >0F1< 0B0 0B1"),
        ("0F0,0F1,0W0,0I0,0B1\n,1F0,1B0,1F1,1B1\n", r"line 1: .* 0W0 comes before 0I0: expected .*\n  0F0 0F1 >0W0<"),
        (
            "0F0,0F1,0B0,0B1\n,1F0,1B0,1F1,1RECV1\n",
            r"line 2: '1RECV1' is of the unknown kind 'RECV'; choices: F forward",
        ),
        (
            "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n",
            r"order.csv: .*: lines 1 and 2: order: cannot go on, for 0B0 waits for 1B0, which stands after 1F1; ",
        ),
    ],
    ids=["misses", "repeats", "W before I", "unknown", "cannot meet"],
)
def test_the_command_refuses_orders_with_what_is_wrong_drawn(
    lanes: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "order.csv"
    file.write_text(lanes)
    search = ("search", "digits_cnn", "--batch", "16", "--machine", "cpu:2x1", "--strategy", "antichain")
    assert status_of(*search, "--order", str(file)) == 2
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("entry", "value", "said"),
    [
        ("micro_batches", 0, "pipeline.micro_batches: expected an integer >= 1, got 0"),
        ("micro_batches", 17, "pipeline.micro_batches: expected at most 16, the samples of a batch, got 17"),
        ("order", "stash", "order 'stash' has no flush"),
        ("stages", None, "stage"),
    ],
    ids=["none", "more than samples", "no flush", "no ideals"],
)
def test_a_plan_that_is_no_pipeline_is_refused_with_its_key(
    entry: str, value: object, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    PIPELINE.save(file)
    document = json.loads(file.read_text())
    if entry == "stages":  # the first has the last's operators, and the last the first's
        document["stages"].reverse()
        own = {name: number for number, stage in enumerate(document["stages"]) for name in stage["operators"]}
        for name, config in document["operators"].items():
            config["processors"] = [own[name]]
    else:
        document["pipeline"][entry] = value
    file.write_text(json.dumps(document))
    assert status_of("simulate", str(file), "--model", "digits_cnn", "--batch", "16", "--machine", "cpu:2x1") == 2
    assert said in capsys.readouterr().err


def test_a_search_with_an_order_is_simulated_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    search = ("search", "digits_cnn", "--batch", "16", "--machine", "cpu:2x1", "--strategy", "antichain", "--json")
    assert status_of(*search, "--order", "gpipe", "--micro-batches", "2", "-o", str(plan)) == 0
    said = json.loads(capsys.readouterr().out)
    assert Plan.load(plan).pipeline == PipelinePlan("gpipe", 2)
    assert status_of("simulate", str(plan), "--draw", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step_s"] == said["step_s"]
    heads, cells = zip(*(row.split("   ", 1) for row in found["drawn"]), strict=True)
    assert heads == ("stage 0", "stage 1")
    assert all({"F0", "F1", "B0", "B1"} & set(row.split()) for row in cells)


def test_a_frontier_takes_no_order(capsys: pytest.CaptureFixture[str]) -> None:
    search = ("search", "digits_cnn", "--batch", "16", "--machine", "cpu:2x1", "--objective", "pareto")
    assert status_of(*search, "--proposals", "1", "--micro-batches", "2") == 2
    assert "expected a search of one plan, and a frontier has several" in capsys.readouterr().err
