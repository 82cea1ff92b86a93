"""FlexFlow's figures at tiny sizes: what is counted and left out, not how fast anything is."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from flexflow.dimensions import EXAMPLES, without
from flexflow.measured import distinct
from flexflow.search_time import plain_chain, redrawn
from flexflow.table import Row, Table
from flexflow.transfers import transfers

import maniple as mp
from maniple.models import model
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap.evaluation import NS
from maniple.strategies.space import Space


def test_data_parallelism_moves_all_gradients_and_weights(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    asked = ["--model", "mlp", "--machine", "k80x2", "--json", str(file)]
    asked += ["--strategy", "data_parallel", "--strategy", "expert"]
    CliRunner().invoke(transfers, asked, catch_exceptions=False)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["plan"] for row in rows] == ["data_parallel", "expert"]
    # Each of two processors sends half of all gradients to the other, and gets half of all weights.
    weights = sum(prod(parameter.shape) for parameter in model("mlp", batch=2).parameters) * 4
    assert rows[0]["bytes_gb"] == pytest.approx(2 * weights / 1e9, rel=0.01)
    assert rows[0]["over_published"] == pytest.approx(rows[0]["bytes_gb"] / 65.8 - 1)
    assert rows[1]["bytes_gb"] < rows[0]["bytes_gb"]


def test_rows_that_are_kept_are_not_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, made = tmp_path / "rows", []

    def row(value: float) -> Row:
        made.append(value)
        return {"value": value}

    Table(file).add({"model": "a", "seed": 0}, lambda: row(0.5))
    again = Table(file)
    again.add({"model": "a", "seed": 0}, lambda: row(1.0))
    again.add({"model": "a", "seed": 1}, lambda: row(2.0))
    Table(file, shown=False).add({"model": "b", "seed": 1}, lambda: row(3.0))
    assert made == [0.5, 2.0, 3.0]
    assert [json.loads(line)["value"] for line in file.read_text().splitlines()] == [0.5, 2.0]
    header = ["| model | seed | value |", "|---|---|---|"]
    assert capsys.readouterr().out.splitlines() == [
        *header, "| a | 0 | 0.5 |", *header, "| a | 0 | 0.5 |", "| a | 1 | 2 |",
    ]  # fmt: skip


@pytest.mark.simulator
def test_a_plain_chain_draws_published_choices_and_ends_by_its_budget() -> None:
    graph, machine = model("mlp", batch=8), mp.Machine.preset("k80x4")
    space = Space.of(graph, 4)
    chance = Random(0)
    for own in space.operators:
        drawn = [redrawn(own, chance) for _ in range(50)]
        assert all(own.contains(choice) and choice.replicas == 1 for choice in drawn)
        assert {choice.start for choice in drawn} == set(range(4))
    start = plain_chain(graph, machine, 0, 60.0)
    found = plain_chain(graph, machine, 200, 60.0)
    assert (start.proposals, found.proposals) == (0, 200)
    assert found.cost < start.cost == Simulation(graph, machine, mp.search(graph, machine)).makespan_ns * NS
    assert plain_chain(graph, machine, 10**9, 0.05).proposals < 10**9


def test_equal_plans_are_run_once() -> None:
    graph, machine = model("mlp", batch=8), mp.Machine.preset("cpu:2x1")
    plans = {name: mp.search(graph, machine, strategy=name) for name in ("data_parallel", "spatial", "model_parallel")}
    assert distinct(plans) == {
        "data_parallel": "data_parallel",
        "spatial": "data_parallel",
        "model_parallel": "model_parallel",
    }


@pytest.mark.parametrize("dimension", EXAMPLES)
def test_a_dimension_is_left_out(dimension: str) -> None:
    space = Space.of(EXAMPLES[dimension](), 2)
    removed = set()
    for own in space.operators:
        kept = set(without(own, dimension, own.choices()))
        assert kept
        removed |= {own.plan(choice) for choice in set(own.choices()) - kept}
        assert dimension == "operator" or {choice.start for choice in kept} == {0, 1}
    assert removed
