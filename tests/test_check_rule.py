"""The command `maniple check-rule`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from maniple.cli import main

PROGRAM = """
import torch
import maniple as mp


@mp.operator("b s k, n k -> b s n", reduce="k:sum", flops_per_point=2)
def scores(x, weight):
    return x @ weight.T


@mp.operator("b k -> b k")
def normalize(x):
    return x.softmax(1)


@mp.operator("b k! -> b k!")
def cautious(x):
    return x.exp()


@mp.operator("b k -> b k")
def raises(x):
    return x[:, [17]]


@mp.operator("b k -> b k")
def forgetful(x):
    x * 2


@mp.operator("b k -> b k")
def listed(x):
    return [x]


@mp.operator("b k -> b k", examples=lambda extents, chance: [extents["q"]])
def misled(x):
    return x


@mp.operator("b s~ -> b s")
def haloless(x):
    return x


@mp.operator("b s~ -> b s", halos={"s": mp.Halo(2, padding=1, after=0)})
def further(x, *, tile):
    rows = tile.tile.extent("s")
    return torch.nn.functional.pad(x, (max(0, rows + 9 - x.shape[1]), 0)).unfold(1, 10, 1).sum(2)[:, -rows:]
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
    assert status("check-rule", f"{program}:scores", "--samples", "3") == 0
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
        ("{}:skores", "did you mean 'scores'"),
        ("nowhere.py:x", "the file 'nowhere.py' does not exist"),
        ("{}", "expected FILE:OPER"),
    ],
)
def test_what_is_no_operator_is_refused(
    program: Path, target: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("check-rule", target.format(program)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("raises", 1, r"mine\.py:raises: the body raised IndexError at .*mine\.py:23: index 17 is out of bounds"),
        ("forgetful", 1, r"defined at .*mine\.py:26: .* to be a torch\.Tensor, got NoneType; does the body return it"),
        ("listed", 1, r"defined at .*mine\.py:31: .* to be a torch\.Tensor, got list; give several as a tuple"),
        (
            "misled",
            1,
            r"mine\.py:misled: the body raised KeyError at .*mine\.py:36: 'q'; .* or examples= must make th",
        ),
        ("haloless", 2, r"operator 'haloless' \(.*mine\.py:41\): factor rule: "),
    ],
)
def test_what_cannot_be_run_names_the_operator_its_file_and_line(
    program: Path, name: str, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("check-rule", f"{program}:{name}") == code
    shown = capsys.readouterr().err
    assert re.search(message, shown), shown
    assert "Traceback" not in shown


def test_a_wrong_rule_of_another_operator_is_told_and_blocks_nothing(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("check-rule", f"{program}:cautious", "--samples", "1") == 0
    shown = capsys.readouterr()
    assert re.match(r"warning: operator 'haloless' \(.*mine\.py:41\): factor rule: ", shown.err)
    assert "is right in" in shown.out


def test_the_verdict_says_which_extents_were_tried(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("check-rule", f"{program}:scores", "--samples", "1", "--json") == 0
    found = json.loads(capsys.readouterr().out)["extents"]
    assert sorted(found) == ["b", "k", "n", "s"]
    assert all({9, 23, 64, 257} <= set(extents) for extents in found.values())
    assert status("check-rule", f"{program}:scores", "--samples", "1") == 0
    assert re.search(r"\n  tried b of (\d+ )+257, s of (\d+ )+257, n of ", capsys.readouterr().out)


def test_a_body_that_reads_further_than_its_halo_is_shown_with_what_it_reads(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("check-rule", f"{program}:further") == 1
    assert re.search(
        r"reads  operand 0 is given at \d+:\d+ of dimension 1, and read at .* too", capsys.readouterr().err
    )


KERNELS = """
import maniple as mp


@mp.operator("b k -> b k")
def halved(x):
    return x / 2


@halved.forward("cpu")
def right(x, out):
    out.copy_(x / 2)


@mp.operator("b k -> b k")
def thirds(x):
    return x / 3


@thirds.backward("cpu")
def wrong(gradient, x, out):
    out.copy_(gradient)
"""


def test_kernels_are_proved_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    assert status("check-rule", f"{path}:halved", "--samples", "2") == 0
    capsys.readouterr()
    assert status("check-rule", f"{path}:thirds", "--samples", "2") == 1
    shown = capsys.readouterr().err
    assert "thirds: a kernel is not what the function is" in shown
    assert "wrong  gradient of operand 0: the kernel's" in shown


@pytest.mark.parametrize("target", ["custom_operator.py:gated", "custom_kernel.py:swish"])
def test_the_examples_are_right(target: str) -> None:
    examples = Path(__file__).resolve().parent.parent / "examples"
    assert status("check-rule", f"{examples}/{target}", "--samples", "2") == 0
