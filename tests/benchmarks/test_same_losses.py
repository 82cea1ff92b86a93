"""The benchmark of losses: which digits it prints, where it writes them, and one world of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import same_losses

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "same_losses.py"


@pytest.mark.parametrize(
    ("values", "printed"),
    [
        ([5.5622578, 5.5622578], "5.5622578"),
        ([5.5622578, 5.5622579], "5.562258"),
        ([5.1234, 5.1236], "5.12"),  # 5.123 and 5.124
        ([1.0, 2.0], "from 1.0000000 to 2.0000000"),
    ],
)
def test_losses_are_printed_to_the_digits_that_agree(values: list[float], printed: str) -> None:
    assert same_losses.agreeing(values) == printed


def test_a_loss_that_is_no_number_stops_it() -> None:
    with pytest.raises(SystemExit, match="no number"):
        same_losses.agreeing([1.0, float("nan")])


def test_a_page_without_marks_is_refused_and_one_with_them_keeps_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing here", encoding="utf-8")
    with pytest.raises(SystemExit, match="expected the marks"):
        same_losses.write_between(page, "table")
    page.write_text("\n".join(("before", same_losses.MARKS[0], "old", same_losses.MARKS[1], "after")), encoding="utf-8")
    same_losses.write_between(page, "table")
    expected = ("before", same_losses.MARKS[0], "table", same_losses.MARKS[1], "after")
    assert page.read_text(encoding="utf-8") == "\n".join(expected)


def test_the_plans_are_of_all_kinds_on_one_to_four_processors_and_two_nodes() -> None:
    worlds = same_losses.WORLDS
    assert {nodes * ranks * processors for nodes, ranks, processors in worlds} == {1, 2, 3, 4}
    assert {nodes for nodes, _, _ in worlds} == {1, 2}
    assert sum(map(len, worlds.values())) >= 18
    kinds = {name.split(":")[0].split(",")[0].split(" ")[0] for names in worlds.values() for name in names}
    assert kinds >= {"data", "parameter", "attribute", "reduction", "operator", "mixed", "uneven", "replicated"}


@pytest.mark.usefixtures("forked_files")
@pytest.mark.jobs
@pytest.mark.timeout(120)
def test_one_world_gives_the_losses_of_torch() -> None:
    command = [sys.executable, str(SCRIPT), "--json", "--world", "1", "1", "1"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert len(found["runs"]) == len(same_losses.WORLDS[1, 1, 1])
    for run in found["runs"]:
        assert run["losses"] == pytest.approx(found["torch"], rel=1e-4)  # float32 against float64
