"""The wheel holds the whole package and nothing else, and a checkout without links cannot be built."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("process", "regions", "runtime", "operators", "mappers", "strategies")
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


def settings() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def entry_points() -> list[tuple[str, str, str]]:
    project = settings()["project"]
    groups = {"console": project["scripts"], **project["entry-points"]}
    return [(group, name, target) for group, entries in groups.items() for name, target in entries.items()]


def expected_files() -> set[str]:
    """What belongs into a wheel, told from the real folders and not from the links that the build follows."""
    names = {f"maniple/{path.name}" for path in (ROOT / "src" / "maniple").glob("*.py")} | {"maniple/py.typed"}
    for folder in ("testing", "zoo"):
        names |= {f"maniple/{folder}/{path.name}" for path in (ROOT / "src" / "maniple" / folder).glob("*.py")}
    for layer in LAYERS:
        names |= {f"maniple/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / layer).rglob("*.py")}
    return names


def copy_of_the_tree(target: Path) -> Path:
    """A copy of what a build reads, links kept as links, without what earlier builds left."""
    leftovers = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in FILES:
        shutil.copy2(ROOT / name, target / name)
    for folder in ("src", *LAYERS):
        shutil.copytree(ROOT / folder, target / folder, symlinks=True, ignore=leftovers)
    return target


def build(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", *options, str(tree)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)


# With no option the wheel is built from the source distribution, which must therefore be complete as well.
@pytest.mark.parametrize("options", [("--wheel",), ()], ids=["from the tree", "from the source distribution"])
def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path, options: tuple[str, ...]) -> None:
    tree = copy_of_the_tree(tmp_path)
    result = build(tree, *options)
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = (tree / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
    version = settings()["project"]["version"]
    metadata = {name for name in names if name.startswith(f"maniple-{version}.dist-info/")}
    assert sorted(set(names) - metadata) == sorted(expected_files())
    assert len(names) == len(set(names))
    assert f"maniple-{version}.dist-info/licenses/LICENSE" in metadata


def test_the_expected_files_are_the_ones_that_an_import_finds() -> None:
    found = {f"maniple/{layer}/__init__.py" for layer in LAYERS} | {"maniple/__init__.py"}
    assert found <= expected_files()
    for layer in LAYERS:
        module = importlib.import_module(f"maniple.{layer}")
        assert module.__file__ is not None
        assert Path(module.__file__).resolve() == ROOT / layer / "__init__.py"


@pytest.mark.parametrize("broken", [("runtime",), LAYERS], ids=["one link", "every link"])
def test_a_checkout_without_links_is_not_built(tmp_path: Path, broken: tuple[str, ...]) -> None:
    tree = copy_of_the_tree(tmp_path)
    for layer in broken:
        link = tree / "src" / "maniple" / layer
        link.unlink()
        link.write_text(f"../../{layer}")  # what git writes with core.symlinks=false
    result = build(tree, "--wheel")
    told = result.stdout + result.stderr
    assert result.returncode != 0, told
    assert "core.symlinks" in told
    for layer in LAYERS:
        assert (f"src/maniple/{layer}" in told) == (layer in broken), told
    assert not list(tree.glob("dist/*.whl"))


@pytest.mark.parametrize("layer", LAYERS)
def test_links_are_relative(layer: str) -> None:
    link = ROOT / "src" / "maniple" / layer
    assert link.is_symlink()
    assert link.readlink() == Path("../..") / layer


@pytest.mark.parametrize(("group", "name", "target"), entry_points())
def test_an_entry_point_leads_to_something(group: str, name: str, target: str) -> None:
    module, _, attribute = target.partition(":")
    assert callable(getattr(importlib.import_module(module), attribute)), (group, name)


def test_the_type_checkers_see_every_folder() -> None:
    tools = settings()["tool"]
    included = set(tools["pyright"]["include"])
    assert {f"src/maniple/{layer}" for layer in LAYERS} | {"src/maniple/*.py", "src/maniple/zoo"} == included
    assert tools["mypy"]["strict"] is True
    assert tools["mypy"]["packages"] == ["maniple"]


def test_the_development_constraints_pin_every_requirement() -> None:
    lines = (ROOT / "constraints-dev.txt").read_text().splitlines()
    pins = {normal(line.partition("==")[0]) for line in lines if "==" in line}
    project = settings()["project"]
    extras = [
        entry
        for name in ("docs", "examples", "lint", "plot", "test")
        for entry in project["optional-dependencies"][name]
    ]
    wanted = {normal(entry) for entry in (*project["dependencies"], *extras)}
    assert wanted - pins == set()
    assert "torch==2.13.0" in lines


def normal(requirement: str) -> str:
    """The name in a requirement, as the package index compares names."""
    name = requirement
    for mark in "[<>=!~; ":
        name = name.partition(mark)[0]
    return name.lower().replace("_", "-").replace(".", "-")
