"""The command fit: whether a step fits, the largest batch that does, and how it refuses."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniple import cli, fit
from maniple.models import digits_cnn
from maniple.runtime.machine.machine import Machine
from maniple.strategies.interface.registry import STRATEGIES
from maniple.strategies.interface.strategy import Problem

MODELS = """
import torch
import maniple as mp

def perceptron():
    graph = mp.Graph("perceptron")
    x, y = graph.input("x", (8, 30)), graph.input("y", (8,), dtype="int64")
    graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, 40)), 10), y))
    return graph

class Eight(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x, y):
        if x.shape[0] != 8:
            raise ValueError("eight or none")
        return torch.nn.functional.cross_entropy(self.layer(x), y)

def eight():
    return mp.from_torch(Eight(), {"x": torch.zeros(8, 4), "y": torch.zeros(8, dtype=torch.int64)})
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(MODELS, encoding="utf-8")
    return path


def status_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ending:
        cli.main(("fit", *arguments))
    assert isinstance(ending.value.code, int)
    return ending.value.code


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    status = status_of(*arguments, "--json")
    return status, cast("dict[str, object]", json.loads(capsys.readouterr().out))


@given(
    st.integers(1, 500),
    st.integers(-4000, 4000),
    st.lists(st.integers(0, 60), min_size=1, max_size=6),
    st.integers(1, 20),
)
def test_the_largest_batch_is_that_of_trying_all(known: int, base: int, bumps: list[int], least: int) -> None:
    """What is needed grows unevenly, and batches below the least cannot be cut."""

    end = 700
    needs = (base + 10 * samples + sum(bumps[: samples % 7]) for samples in range(least, end))
    growing = list(accumulate(needs, max))
    tried: list[int] = []

    def probe(samples: int) -> int | None:
        tried.append(samples)
        return None if samples < least else growing[samples - least] if samples < end else 10**6

    known = max(known, least)
    wanted = max((least + place for place, size in enumerate(growing) if size <= 0), default=None)
    assert fit.largest(probe, known, growing[known - least]) == wanted
    assert len(tried) <= 40


def test_a_line_is_found_in_a_few_turns() -> None:
    tried: list[int] = []

    def beyond(samples: int) -> int:
        tried.append(samples)
        return 3 * samples - 30_000

    assert fit.largest(beyond, 64, 3 * 64 - 30_000) == 10_000
    assert len(tried) <= 6


def test_no_batch_is_too_large() -> None:
    assert fit.largest(lambda samples: -1, 3, -1) == fit.MOST_SAMPLES


@pytest.mark.simulator
@pytest.mark.parametrize(("name", "batch"), [("digits_cnn", 32), ("lenet", 64)])
def test_zoo_models_fit_in_large_memories_and_not_in_small_ones(
    name: str, batch: int, capsys: pytest.CaptureFixture[str]
) -> None:
    status, large = told(capsys, name, "--machine", "p100x2", "--batch", str(batch), "--memory", "8MiB")
    assert (status, large["fits"]) == (0, True)
    assert cast("int", large["largest_batch"]) >= batch
    status, small = told(capsys, name, "--machine", "p100x2", "--batch", str(batch), "--memory", "64KiB")
    assert (status, small["fits"]) == (1, False)
    assert set(small) == set(large)
    for memory in cast("list[dict[str, object]]", large["memories"]):
        kinds = cast("dict[str, int]", memory["kinds"])
        assert list(kinds) == ["parameters", "gradients", "optimizer", "activations", "saved", "exchange", "scratch"]
        assert sum(kinds.values()) == memory["peak_bytes"]
        assert cast("int", memory["needed_bytes"]) <= cast("int", memory["capacity_bytes"])


@pytest.mark.simulator
def test_the_largest_batch_fits_and_one_more_does_not(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = (f"{models}:perceptron", "--machine", "cpu:2x1", "--memory", "64KiB")
    _, found = told(capsys, *asked)
    most = cast("int", found["largest_batch"])
    assert most > 8
    assert told(capsys, *asked, "--batch", str(most))[1]["fits"]
    status, beyond = told(capsys, *asked, "--batch", str(most + 1))
    assert (status, beyond["fits"], beyond["largest_batch"]) == (1, False, most)


@pytest.mark.simulator
def test_a_plan_is_examined_as_it_is_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph, machine = digits_cnn(batch=8), Machine.preset("cpu:4")
    path = tmp_path / "plan.json"
    STRATEGIES.lookup("data_parallel")().plan(Problem(graph, machine)).save(path)
    asked = ("digits_cnn", "--machine", "cpu:4", "--batch", "8", "--plan", str(path))
    assert told(capsys, *asked)[1]["fits"]
    status, found = told(capsys, *asked, "--memory", "1KiB")
    assert (status, found["largest_batch"]) == (1, None)
    assert "the plan is none for" in str(found["largest_batch_note"])


@pytest.mark.simulator
def test_a_model_that_has_one_batch_says_so(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(f"{models}:eight", "--machine", "cpu:1") == 0
    shown = capsys.readouterr().out
    assert "8 samples a step: fits" in shown
    assert "largest batch that fits: 8; other batches are not known to fit" in shown
    assert "eight or none" in shown


@pytest.mark.simulator
def test_a_strategy_that_finds_no_plan_that_fits_is_told_of_all_the_same(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = (f"{models}:perceptron", "--machine", "cpu:2", "--strategy", "soap", "--proposals", "20")
    status, found = told(capsys, *asked, "--memory", "8KiB")
    assert (status, found["fits"]) == (1, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mlp", "--machine", "cpu:2", "--plan", "a", "--strategy", "soap"), "--plan and --strategy"),
        (("mlq", "--machine", "cpu:2"), "mlp"),
        (("mlp", "--machine", "cpu:2", "--memory", "much"), "--memory"),
        (("mlp", "--machine", "cpu:2", "--strategy", "soup"), "soap"),
        (("mlp",), "--machine"),
    ],
)
def test_misuse_is_status_2(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(*arguments) == 2
    assert message in capsys.readouterr().err
