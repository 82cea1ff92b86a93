"""`maniple calibrate`: a machine, tasks that are kept and can be taken elsewhere, and how good the fits are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from maniple import cli
from maniple.process import environment
from maniple.runtime.machine.machine import Machine
from maniple.strategies.cost_model.measurement import read_measurements

pytestmark = [pytest.mark.ranks, pytest.mark.simulator, pytest.mark.timeout(180)]

MODEL = """
import maniple as mp

def small():
    graph = mp.Graph("small")
    x, y = graph.input("x", (8, 4)), graph.input("y", (8,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.relu(graph.linear(x, 3)), y))
    return graph
"""


def calibrated(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {**environment.copy_variables(), "MANIPLE_CACHE": str(folder / "cache")}
    command = [sys.executable, "-m", "maniple.cli", "calibrate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=170, check=False, env=variables)


def test_a_machine_is_written_and_tasks_are_kept_and_exported(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    written, exported = tmp_path / "here.toml", tmp_path / "tasks.json"
    given = ("--nodes", "1", "--model", f"{tmp_path / 'model.py'}:small", "-o", str(written), "--export", str(exported))
    found = calibrated(tmp_path, *given, "--seconds", "120", "--json")
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    machine = Machine.load(written)
    assert machine.processors[0].launch_s == told["launch_s"] > 0
    kept = read_measurements(told["tasks"]["file"])
    assert Path(told["tasks"]["file"]).parent == tmp_path / "cache"
    assert kept == read_measurements(exported)
    assert told["tasks"]["measured"] == told["tasks"]["new"] == len(kept.tasks) > 4
    assert {"linear.forward", "relu.backward"} <= {key.kind for key in kept.tasks}
    assert told["link"] is None


def test_gpus_are_measured_with_what_their_host_takes_and_a_hop_between_ranks(tmp_path: Path) -> None:
    """Null devices stand in for GPUs: everything is measured as on one, and said to mean nothing."""
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    written = tmp_path / "here.toml"
    given = ("--device", "null", "--nodes", "2", "--model", f"{tmp_path / 'model.py'}:small", "-o", str(written))
    found = calibrated(tmp_path, *given, "--seconds", "5")
    assert found.returncode == 0, found.stderr
    assert "of a null device: these times mean nothing" in found.stdout
    machine = Machine.load(written)
    assert [processor.kind for processor in machine.processors] == ["gpu", "gpu"]
    first = machine.processors[0]
    assert first.feed is not None
    assert min(first.feed.eager_s, first.feed.staging, first.feed.upload, first.feed.download, first.launch_s) > 0
    assert dict(first.peaks).keys() == {"tf32", "bfloat16", "float16", "float64"}
    assert machine.link(0, 1).latency_s + 1 / machine.link(0, 1).bandwidth > 0
    (kept,) = (tmp_path / "cache").glob("costs-*.json")
    assert read_measurements(kept).device == "NullDevice"


def test_gpus_that_are_not_here_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit) as ending:
        cli.main(["calibrate", "--device", "cuda", "--model", "mlp"])
    assert ending.value.code == 2
    assert "--device cuda: this torch is built without CUDA" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--device", "cud"), "did you mean 'cuda'"),
        (("--nodes", "0"), "--nodes: expected at least 1, got 0"),
        (("--seconds", "-1"), "--seconds: expected at least 0, got -1"),
        (("--seconds", "nan"), "--seconds: expected at least 0, got nan"),
        (("--model", "digits_cn"), "did you mean 'digits_cnn'"),
    ],
)
def test_wrong_requests(arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        cli.main(["calibrate", *arguments])
    assert ending.value.code == 2
    assert said in capsys.readouterr().err
