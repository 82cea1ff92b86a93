"""`make quick` runs the tests of what a change touches, the nearest first."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import grimp
import pytest

FILES = {
    "tests/conftest.py": "",
    "tests/runtime/conftest.py": "",
    "tests/runtime/lanes/test_lane.py": "import json\n",
    "tests/runtime/lanes/test_other.py": "from maniple.runtime.lanes import lane\n",
    "tests/runtime/test_steps.py": "from maniple.runtime.steps import Steps\n",
    "tests/laws/test_law.py": "import maniple.face\n",
    "tests/laws/oracle.py": "import maniple.runtime.lanes.lane\n",
    "tests/regions/test_box.py": "from maniple.regions.box import Box\n",
    "tests/test_started.py": "COMMAND = ['python', '-m', 'maniple.runtime.lanes.lane']\n",
    "tests/test_docs.py": "PAGE = 'soap.md'\n",
}
"""Tests, which are read and not run."""
IMPORTS = (
    ("maniple.runtime.steps", "maniple.runtime.lanes.lane"),
    ("maniple.face", "maniple.runtime.steps"),
    ("maniple.runtime.lanes.lane", "maniple.regions.box"),
)


@pytest.fixture(scope="module")
def touched(repository: Path) -> ModuleType:
    """The program."""
    spec = importlib.util.spec_from_file_location("touched", repository / ".ci" / "touched.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Who imports whom."""
    found = grimp.ImportGraph()
    for importer, imported in IMPORTS:
        found.add_import(importer=importer, imported=imported)
    return found


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("runtime/lanes/lane.py", "maniple.runtime.lanes.lane"),
        ("src/maniple/cli.py", "maniple.cli"),
        ("strategies/soap/__init__.py", "maniple.strategies.soap"),
        ("src/maniple/__init__.py", "maniple"),
        ("tests/test_cli.py", None),
        ("examples/digits.py", None),
        ("docs/explanation/soap.md", None),
        ("Makefile", None),
    ],
)
def test_a_path_of_the_package_is_a_module(touched: ModuleType, path: str, module: str | None) -> None:
    assert touched.module_of(path) == module


def test_the_nearest_tests_of_a_module_come_first(touched: ModuleType, graph: grimp.ImportGraph) -> None:
    assert touched.chosen(["runtime/lanes/lane.py"], graph, FILES) == [
        "tests/test_house.py",
        "tests/runtime/lanes/test_lane.py",  # where its tests lie
        "tests/runtime/lanes/test_other.py",  # names it
        "tests/test_started.py",
        "tests/runtime/test_steps.py",  # names what imports it
        "tests/laws/test_law.py",  # and what imports that
    ]


def test_a_test_that_reaches_two_changes_has_the_distance_of_the_nearer(
    touched: ModuleType, graph: grimp.ImportGraph
) -> None:
    assert touched.distances(graph, ["maniple.regions.box", "maniple.runtime.steps", "maniple.gone"]) == {
        "maniple.regions.box": 0,
        "maniple.runtime.steps": 0,
        "maniple.runtime.lanes.lane": 1,
        "maniple.face": 1,
    }


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("tests/laws/test_law.py", ["tests/laws/test_law.py", "tests/test_house.py"]),
        (
            "tests/runtime/conftest.py",
            [
                "tests/runtime/lanes/test_lane.py",
                "tests/runtime/lanes/test_other.py",
                "tests/runtime/test_steps.py",
                "tests/test_house.py",
            ],
        ),
        ("docs/explanation/soap.md", ["tests/test_house.py", "tests/test_docs.py"]),
        ("docs/reference/regions.md", ["tests/test_house.py"]),
    ],
)
def test_what_is_no_module_chooses_what_has_or_names_it(
    touched: ModuleType, graph: grimp.ImportGraph, path: str, tests: list[str]
) -> None:
    assert touched.chosen([path], graph, FILES) == tests


def test_imports_and_dotted_names_are_what_a_test_names(touched: ModuleType) -> None:
    text = "import maniple as mp\nfrom maniple.runtime import lanes\nCODE = 'import maniple.cli'\n"
    assert touched.named_modules(text) == {"maniple", "maniple.runtime", "maniple.runtime.lanes", "maniple.cli"}


def test_when_the_time_is_up_the_rest_is_not_run(touched: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "test_three.py").write_text("def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass\n")
    for seconds, ended in ((0.0, 1), (600.0, 3)):
        deadline = touched.Deadline(seconds)
        pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)], plugins=[deadline])
        assert len(deadline.ended) == ended
        assert deadline.has_stopped_sound == (ended < 3)
