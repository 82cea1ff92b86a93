"""FlexFlow's figures at tiny sizes: what is counted and left out, not how fast anything is."""

from __future__ import annotations

import json
from functools import partial
from math import prod
from pathlib import Path
from random import Random

import flexflow.measured
import flexflow.search_time
import flexflow.table
import pytest
from click import Command
from click.testing import CliRunner
from flexflow.dimensions import EXAMPLES, without
from flexflow.learnt import learnt
from flexflow.measured import distinct, measured
from flexflow.scaling import DAY_S, scaling
from flexflow.search_time import Plain, plain_chain, redrawn, search_time, search_time_row
from flexflow.table import Row, Table, of_contents
from flexflow.transfers import transfers
from thread_ranks import run_on_worlds

import maniple as mp
from maniple.models import model
from maniple.runtime.control.world import World
from maniple.strategies.interface.space import Space
from maniple.strategies.simulation.simulation import Simulation
from maniple.strategies.soap.evaluation import NS
from maniple.testing import local_worlds

FILES = ("one.toml", "two.toml")


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
    assert made == [0.5, 2.0]
    assert [json.loads(line)["value"] for line in file.read_text().splitlines()] == [0.5, 2.0]
    header = ["| model | seed | value |", "|---|---|---|"]
    assert capsys.readouterr().out.splitlines() == [
        *header, "| a | 0 | 0.5 |", *header, "| a | 0 | 0.5 |", "| a | 1 | 2 |",
    ]  # fmt: skip


def test_rank_0_alone_reads_and_says_what_is_kept(tmp_path: Path) -> None:
    """Rank 1 sees another file, as on another host: it makes the rows that rank 0 makes, for they need both."""
    files = [tmp_path / "rows", tmp_path / "stale"]
    for file, model_name in zip(files, "ab", strict=True):
        file.write_text(json.dumps({"model": model_name, "value": 0.5}) + "\n")
    before = files[1].read_text()
    made: list[tuple[str, int]] = []

    def program(world: World) -> None:
        def row(name: str) -> Row:
            made.append((name, world.rank))
            return {"value": 1.0}

        table = Table(files[world.rank], world)
        for name in "ab":
            table.add({"model": name}, partial(row, name))

    run_on_worlds(local_worlds(2), program)
    assert sorted(made) == [("b", 0), ("b", 1)]
    assert [json.loads(line)["model"] for line in files[0].read_text().splitlines()] == ["a", "b"]
    assert files[1].read_text() == before


def test_files_are_told_apart_by_what_is_in_them(tmp_path: Path) -> None:
    file, named = tmp_path / "here.toml", []
    for text in ("slow", "fast", "slow"):
        file.write_text(text)
        named.append(of_contents(file))
    assert named[0] == named[2] != named[1]
    assert all(name.startswith(str(file)) for name in named)


@pytest.mark.simulator
@pytest.mark.parametrize(
    ("command", "options"),
    [
        (search_time, {"proposals": ("3", "4"), "longest": ("5", "6"), "seeds": ("1", "2"), "budget": ("1", "2")}),
        (measured, {"rounds": ("1", "2"), "steps": ("1", "2"), "budget": ("1", "2"), "machine": FILES}),
    ],
)
def test_a_row_depends_on_every_option(
    command: Command, options: dict[str, tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is run: rows count how many were made before them."""
    made: list[int] = []

    def row(*_: object) -> Row:
        made.append(0)
        return {"value": len(made)}

    monkeypatch.chdir(tmp_path)
    for file, cores in zip(FILES, (1, 2), strict=True):
        mp.Machine.cpu(1, cores=cores).save(file)
    monkeypatch.setattr(flexflow.measured, "measured_row", row)
    monkeypatch.setattr(flexflow.search_time, "search_time_row", row)
    monkeypatch.setattr(flexflow.search_time, "plain_chain", lambda *_: None)
    given = {name: first for name, (first, _) in options.items()}
    asked = [given, given, *(given | {name: other} for name, (_, other) in options.items())]
    kept = ["--model", "mlp", "--json", "rows", *(["--devices", "4"] if command is search_time else [])]
    for one in asked:
        words = [word for name, value in one.items() for word in (f"--{name}", value)]
        CliRunner().invoke(command, [*kept, *words], catch_exceptions=False)
    assert len(made) == 1 + len(options)


@pytest.mark.simulator
def test_a_plain_chain_draws_published_choices_and_makes_all_proposals_or_none() -> None:
    graph, machine = model("mlp", batch=8), mp.Machine.preset("k80x4")
    space = Space.of(graph, 4)
    chance = Random(0)
    for own in space.operators:
        drawn = [redrawn(own, chance) for _ in range(50)]
        assert all(own.contains(choice) and choice.replicas == 1 for choice in drawn)
        assert {choice.start for choice in drawn} == set(range(4))
    start = plain_chain(graph, machine, 0, 60.0)
    found = plain_chain(graph, machine, 200, 60.0)
    assert start.whole
    assert found.whole
    assert found.accepted > start.accepted == 0
    assert found.cost < start.cost == Simulation(graph, machine, mp.search(graph, machine)).makespan_ns * NS
    long = plain_chain(graph, machine, 10**9, 60.0, pace=0.05)
    assert not long.whole
    assert long.seconds > 60.0


@pytest.mark.simulator
@pytest.mark.parametrize("plain", [Plain(1.0, 3, whole=False, seconds=700.0), Plain(1.0, 0, whole=True, seconds=7.0)])
def test_a_chain_that_was_not_run_or_did_not_move_times_nothing(plain: Plain) -> None:
    graph, machine = model("mlp", batch=8), mp.Machine.preset("k80x4")
    row = search_time_row(graph, machine, plain, 1, 1.0)
    assert row == {"plain_whole": plain.whole, "plain_s": plain.seconds, "plain_accepted": plain.accepted}


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


def test_a_day_counts_the_search_and_one_gpu_is_the_measure(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    asked = ["--model", "mlp", "--kind", "p100", "--gpus", "1", "--gpus", "2", "--proposals", "3", "--json", str(file)]
    CliRunner().invoke(scaling, [*asked, "--charge", "864"], catch_exceptions=False)
    alone, two = (json.loads(line) for line in file.read_text().splitlines())
    assert (alone["batch"], two["batch"], alone["gpus"], two["gpus"]) == (64, 128, 1, 2)
    assert alone["soap_efficiency"] == 1.0
    assert two["soap_efficiency"] == pytest.approx(two["samples_per_s"] / 2 / alone["samples_per_s"])
    for row in (alone, two):
        assert row["samples_per_s"] == pytest.approx(row["batch"] / row["soap_ms"] * 1e3)
        assert row["over_a_day"] == pytest.approx(row["samples_per_s"] * (1 - 864 / DAY_S))
        assert row["soap_ms"] <= min(row["data_parallel_ms"], row["expert_ms"])
        assert row["search_within_charge"] is True
        # After so long a plan without a search has trained as much: what it does meanwhile is what the search takes.
        if row["pays_after_s"] is not None:
            best = row["batch"] / min(row["data_parallel_ms"], row["expert_ms"]) * 1e3
            assert best * row["pays_after_s"] == pytest.approx(row["samples_per_s"] * (row["pays_after_s"] - 864))


def test_the_terms_of_a_placement_make_its_step(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    asked = ["--model", "mlp", "--machine", "k80x2", "--proposals", "5", "--json", str(file)]
    CliRunner().invoke(learnt, asked, catch_exceptions=False)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["strategy"] for row in rows] == ["data_parallel", "expert", "reinforce", "soap"]
    for row in rows:
        assert row["tasks_on_path_ms"] + row["movements_on_path_ms"] == pytest.approx(row["step_ms"])
        assert row["gpu_least_ms"] <= row["gpu_mean_ms"] <= row["gpu_most_ms"] <= row["step_ms"]


def test_a_table_is_put_between_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all rows share is told once; the rest of the page stays."""
    monkeypatch.setattr(flexflow.table, "PAGES", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- benchmarks/a.py: begin -->\nold\n<!-- benchmarks/a.py: end -->\nafter\n")
    table = Table(None, page=("page", "a.py"))
    for model_name, value in (("a", 12345.6), ("b", None)):
        table.add({"model": model_name, "machine": "m"}, lambda value=value: {"ms": value})
    table.write()
    shown = "All rows: machine m.\n\n| model | ms |\n|---|---|\n| a | 12,346 |\n| b |  |"
    marks = "<!-- benchmarks/a.py: begin -->", "<!-- benchmarks/a.py: end -->"
    assert page.read_text() == f"before\n{marks[0]}\n{shown}\n{marks[1]}\nafter\n"
    Table(None, page=("page", "a.py")).write()  # nothing was added
    assert shown in page.read_text()
