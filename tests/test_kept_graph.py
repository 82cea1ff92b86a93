"""A search reads the graph of a model that an earlier one has imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from maniple import kept_graph
from maniple.operators.graph.graph import Graph
from maniple.process.error import RequestError
from maniple.request import model_of


@pytest.fixture(scope="module")
def imported() -> Graph:
    return model_of("lenet", 8)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where graphs are kept."""
    monkeypatch.setenv("MANIPLE_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


@pytest.fixture
def imports(folder: Path, imported: Graph, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were imported rather than read; lenet is, whatever they are called."""
    found: list[str] = []

    def importing(source: str, batch: int | None) -> Graph:
        found.append(source)
        return imported

    monkeypatch.setattr(kept_graph, "model_of", importing)
    return found


def test_what_is_kept_is_what_was_imported(imports: list[str], imported: Graph) -> None:
    graphs = [kept_graph.planning_graph("lenet", 8) for _ in range(3)]
    assert imports == ["lenet"]
    assert {graph.fingerprint() for graph in graphs} == {imported.fingerprint()}
    assert graphs[2] is not imported


def test_another_batch_another_model_and_other_sources_are_imported(
    imports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_graph.planning_graph("lenet", 8)
    kept_graph.planning_graph("lenet", None)
    kept_graph.planning_graph("alexnet", 8)
    assert imports == ["lenet", "lenet", "alexnet"]
    monkeypatch.setattr(kept_graph, "SOURCES", ("models.py",))
    kept_graph.planning_graph("lenet", 8)
    assert imports == ["lenet", "lenet", "alexnet", "lenet"]


def _cut(text: str) -> str:
    return text[:-10]


def _renamed(text: str) -> str:
    return text.replace('"name": "lenet"', '"name": "lenin"')


def _empty(_: str) -> str:
    return "[]"


@pytest.mark.parametrize("harm", [_cut, _renamed, _empty])
def test_a_damaged_file_is_not_read(harm: Callable[[str], str], folder: Path, imports: list[str]) -> None:
    kept_graph.planning_graph("lenet", 8)
    (path,) = folder.glob("*.json")
    whole = path.read_text()
    assert harm(whole) != whole
    path.write_text(harm(whole))
    kept_graph.planning_graph("lenet", 8)
    assert imports == ["lenet", "lenet"]
    assert json.loads(path.read_text()) == json.loads(whole)


def test_what_a_file_makes_is_never_kept(folder: Path, imports: list[str]) -> None:
    for _ in range(2):
        kept_graph.planning_graph("model.py:small", 8)
    assert imports == ["model.py:small"] * 2
    assert not folder.exists()


def test_where_nothing_can_be_written_every_search_imports(folder: Path, imports: list[str]) -> None:
    folder.write_text("a file")
    for _ in range(2):
        kept_graph.planning_graph("lenet", 8)
    assert imports == ["lenet"] * 2


def test_what_nobody_has_read_for_long_is_removed(folder: Path, imports: list[str]) -> None:
    folder.mkdir()
    for name in ("graph-old.json", "graph-new.json", "costs-old.json"):
        (folder / name).write_text("{}")
    for name in ("graph-old.json", "costs-old.json"):
        os.utime(folder / name, (0, 0))
    kept_graph.planning_graph("lenet", 8)
    left = {path.name for path in folder.iterdir()}
    assert {"graph-new.json", "costs-old.json"} < left
    assert "graph-old.json" not in left


def test_an_unknown_model_and_a_batch_of_nothing_are_refused(folder: Path) -> None:
    with pytest.raises(RequestError, match="did you mean 'lenet'"):
        kept_graph.planning_graph("lenett", None)
    with pytest.raises(RequestError, match="expected at least 1 sample"):
        kept_graph.planning_graph("lenet", 0)


def test_a_kept_graph_is_read_without_torch(imports: list[str]) -> None:
    kept_graph.planning_graph("lenet", 8)
    code = (
        "import sys; from maniple.kept_graph import planning_graph\n"
        "planning_graph('lenet', 8); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "False\n"
