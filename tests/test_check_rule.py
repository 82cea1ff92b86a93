"""The command `maniple check-rule`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from maniple.cli import main

PROGRAM = """
import maniple as mp


@mp.operator("b s k, n k -> b s n", reduce="k:sum", flops_per_point=2)
def project(x, weight):
    return x @ weight.T


@mp.operator("b k -> b k")
def normalize(x):
    return x.softmax(1)


@mp.operator("b k! -> b k!")
def cautious(x):
    return x.exp()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(PROGRAM)
    return path


def status(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def test_a_right_rule_passes(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("check-rule", f"{program}:project", "--samples", "3") == 0
    assert "'b s k, n k -> b s n' is right in" in capsys.readouterr().out


def test_a_wrong_rule_shows_its_counterexample(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("check-rule", f"{program}:normalize") == 1
    shown = capsys.readouterr().err
    assert "the rule is wrong" in shown
    assert "split  k=2" in shown
    assert "operand 0" in shown


def test_a_split_that_is_kept_from_being_is_named(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("check-rule", f"{program}:cautious", "--samples", "3", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["operator"], found["allowed"]) == ("cautious", ["k"])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{}:projekt", "did you mean 'project'"),
        ("nowhere.py:x", "expected FILE:OPERATOR"),
        ("{}", "expected FILE:OPER"),
    ],
)
def test_what_is_no_operator_is_refused(
    program: Path, target: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("check-rule", target.format(program)) == 2
    assert message in capsys.readouterr().err
