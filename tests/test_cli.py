from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from maniple import cli, doctor


def status_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ending:
        cli.main(arguments)
    assert isinstance(ending.value.code, int)
    return ending.value.code


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text("pass\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rum"], "did you mean 'run'?"),
        (["list", "oper"], "did you mean 'operators'?"),
        (["run", "--nodes", "0", "SCRIPT"], "--nodes"),
        (["run", "--nodes", "two", "SCRIPT"], "--nodes"),
        (["run", "--nodez", "2", "SCRIPT"], "--nodez"),
        (["run", "--port", "70000", "SCRIPT"], "--port"),
        (["run", "--join-timeout", "0", "SCRIPT"], "--join-timeout"),
        (["run", "--launcher", "slrm", "SCRIPT"], "launcher 'slrm': there is no such launcher"),
        (["run", "--launcher", "locla", "SCRIPT"], "did you mean 'local'?"),
        (["run", "--launcher", "local:here", "SCRIPT"], "takes no argument, got 'here'"),
        (["run", "--device", "cdua", "SCRIPT"], "did you mean 'cuda'?"),
        (["run", "--transport", "zqm", "SCRIPT"], "did you mean 'zmq'?"),
        (["run"], "script"),
        (["run", "-m"], "module"),
        (["run", "-m", "no_such_package_here"], "no_such_package_here"),
        (["run", "--nodes", "2", "missing.py"], "missing.py"),
    ],
)
def test_a_wrong_request_is_one_line_and_status_2(
    arguments: list[str], said: str, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(*(script if word == "SCRIPT" else word for word in arguments)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert said in shown.err


def test_with_json_an_error_is_one_object_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("list", "oper", "--json") == 2
    shown = capsys.readouterr()
    assert shown.err == ""
    error = json.loads(shown.out)["error"]
    assert error["kind"] == "request"
    assert "'oper'" in error["message"]
    assert "operators" in error["next"]


@pytest.mark.parametrize(
    ("kind", "name", "origin"),
    [
        ("mappers", "default", "maniple.mappers.default:DefaultMapper"),
        ("operators", "conv2d", "maniple.operators.library.windows.convolution:Conv2d"),
        ("strategies", "data_parallel", "maniple.strategies.named.data_parallel:DataParallel"),
    ],
)
def test_every_list_has_its_names_and_where_they_are_from(
    kind: str, name: str, origin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of("list", kind, "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)[kind]}
    assert rows[name] == {"name": name, "origin": origin, "packages": ["maniple"]}
    assert status_of("list", kind) == 0
    assert capsys.readouterr().out.splitlines() == list(rows)


def test_the_list_of_machines_has_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("list", "machines", "--json") == 0
    assert "cpu:PROCESSORS" in json.loads(capsys.readouterr().out)["machines"]


def test_a_list_of_nothing_counts_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("list", "--json") == 0
    counts = json.loads(capsys.readouterr().out)["kinds"]
    assert {"machines", "mappers", "models", "operators", "strategies"} <= set(counts)
    assert status_of("list") == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        [kind, str(count)] for kind, count in counts.items()
    ]
    assert status_of("list", "mappers") == 0
    assert len(capsys.readouterr().out.splitlines()) == counts["mappers"]


def test_the_list_of_models_says_what_they_take(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("list", "models", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["models"]}
    assert rows["resnet50"] == {
        "name": "resnet50",
        "batch": 64,
        "inputs": {
            "images": {"shape": [64, 3, 224, 224], "dtype": "float32"},
            "labels": {"shape": [64], "dtype": "int64"},
        },
        "parameters": 25_557_032,
    }
    assert status_of("list", "models") == 0
    assert set(capsys.readouterr().out.split()) == {*rows, "digits_cnn"}


def test_everything_after_the_script_belongs_to_it(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        status_of("run", "--nnodes", "2", "--nproc-per-node=2", "--dry-run", script, "--nodes", "7", "--json", "-m")
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"node {rank // 2} (rank {rank})" for rank in range(4)]
    assert all(line.endswith(f"{script} --nodes 7 --json -m") for line in lines)
    assert ["WORLD_SIZE=4" in line for line in lines] == [True] * 4


def test_ranks_are_told_to_keep_the_order_of_the_program(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("run", "--deterministic", "--mapper", "round_robin", "--dry-run", script) == 0
    assert "MANIPLE_DETERMINISTIC=1" in capsys.readouterr().out
    assert status_of("run", "--dry-run", script) == 0
    assert "MANIPLE_DETERMINISTIC" not in capsys.readouterr().out


def test_ranks_are_told_that_torch_compiles(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("run", "--compile", "--dry-run", script) == 0
    assert "MANIPLE_COMPILE=1" in capsys.readouterr().out
    assert status_of("run", "--dry-run", script) == 0
    assert "MANIPLE_COMPILE" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("transport", "told"),
    [
        ("shared", "within a host through shared memory, between hosts through ZeroMQ"),
        ("zmq", "within a host through ZeroMQ, between hosts through ZeroMQ"),
        ("gloo", "within a host through Gloo, between hosts through Gloo"),
    ],
)
def test_a_dry_run_says_how_tiles_travel(
    script: str, transport: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of("run", "--nodes", "2", "--transport", transport, "--dry-run", script) == 0
    shown = capsys.readouterr()
    assert shown.err == f"maniple: tiles travel {told}\n"
    assert ("MANIPLE_TRANSPORT=zmq" in shown.out) == (transport == "zmq")


def test_a_module_takes_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("run", "--dry-run", "-m", "json.tool", "--indent", "2") == 0
    assert capsys.readouterr().out.endswith("-m json.tool --indent 2\n")


def test_the_doctor_looks_at_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("doctor", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    names = {finding["name"] for finding in report["findings"]}
    assert names >= {"python", "torch", "cores", "memory", "shared memory", "ports", "torch threads"}
    assert report["ok"] is True


def test_the_doctor_names_gpus_and_why_they_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = SimpleNamespace(name="Some GPU", total_memory=80 << 30, major=9, minor=0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda number: seen)
    (refused,) = doctor._gpus()  # of a driver that torch cannot use nothing is asked
    assert (refused.ok, refused.next[:15]) == (False, "--device cuda: ")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_arch_list", lambda: ["sm_100"])
    monkeypatch.setattr("torch.cuda.get_device_name", lambda number: seen.name)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda number: (seen.major, seen.minor))
    named, refused = doctor._gpus()
    assert (named.value, named.ok) == ("Some GPU, 80.0 GiB, capability 9.0", True)
    assert (refused.ok, refused.next[:39]) == (False, "--device cuda: cuda:0 (Some GPU) has ca")


def test_the_doctor_names_what_is_missing_and_the_next_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "REQUIRED", ("no-such-package-here",))
    assert status_of("doctor") == 1
    assert "no-such-package-here: not installed; pip install no-such-package-here" in capsys.readouterr().out


def test_the_command_line_imports_no_heavy_package() -> None:
    code = "import sys, maniple.cli; print([n for n in ('torch', 'numba', 'zmq', 'numpy') if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


def test_the_module_can_be_run() -> None:
    command = [sys.executable, "-m", "maniple.cli", "list", "machines"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "cpu:PROCESSORS" in result.stdout
