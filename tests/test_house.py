"""The house rules that a program can decide. `CONTRIBUTING.md` lists them all."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FACE = ROOT / "src" / "maniple"

# Each layer and the layers that it may import.
#
#     mappers  strategies
#          \     /
#         operators
#          runtime
#          regions
MAY_IMPORT: dict[str, frozenset[str]] = {
    "regions": frozenset({"regions"}),
    "runtime": frozenset({"regions", "runtime"}),
    "operators": frozenset({"regions", "runtime", "operators"}),
    "mappers": frozenset({"regions", "runtime", "operators", "mappers"}),
    "strategies": frozenset({"regions", "runtime", "operators", "strategies"}),
}
# The rooms of a layer: each may import those before it, for type checking, too.
ROOMS: dict[str, tuple[str, ...]] = {
    "runtime": [
        "process",
        "transports",
        "control",
        "machine",
        "schedule",
        "analysis",
        "observe",
        "devices",
        "storage",
        "program",
        "lanes",
        "execution",
        "session",
        "cluster",
    ],
    "operators": ["rules", "operator", "training", "library", "graph", "plan", "lowering", "proving", "torch_import"],
    "strategies": [
        "cost_model",
        "lowering",
        "timing",
        "interface",
        "named",
        "simulation",
        "search",
        "bound",
        "optcnn",
        "soap",
        "exhaustive",
        "frontier",
        "pipeline",
        "dnn_partitioning",
        "segmentation",
    ],
}
# What still points upwards: (importer, imported), with the reason. The list only becomes shorter.
UPWARDS = {
    ("runtime.program.call", "runtime.execution.rank"): "a result is awaited at its rank: to be a narrow protocol",
    ("runtime.program.future", "runtime.execution.rank"): "as above",
}
MOST_MODULES = 20
LONGEST_FILE = 400
LONGEST_FUNCTION = 60
MOST_PUBLIC_NAMES = 60
EMPTY_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "manager", "misc", "core", "base"})
NO_CODE_ON_THE_WIRE = frozenset({"pickle", "cloudpickle", "dill", "marshal", "shelve", "multiprocessing"})
HEAVY = ("numba", "matplotlib", "sklearn", "IPython")

SOURCES = (
    sorted(path for layer in MAY_IMPORT for path in (ROOT / layer).rglob("*.py"))
    + sorted(FACE.glob("*.py"))
    + sorted(FACE.glob("testing/*.py"))
    + sorted(FACE.glob("zoo/*.py"))
)


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), named(path))


def imported(tree: ast.Module) -> Iterator[str]:
    """The dotted names that a module imports, anywhere in it; ``from a import b`` gives ``a`` and ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def is_bare(name: str) -> bool:
    """Whether a name is relative, or reaches a layer without going through the package."""
    return name.startswith(".") or name.split(".", maxsplit=1)[0] in MAY_IMPORT


def layer_faults(layer: str, names: Iterator[str]) -> list[str]:
    """The imported names that a module of ``layer`` may not import."""
    allowed = MAY_IMPORT[layer]
    faults = []
    for name in names:
        package, _, inner = name.partition(".")
        if is_bare(name) or (package == "maniple" and inner.split(".")[0] not in allowed):
            faults.append(name)
    return faults


def environment_uses(tree: ast.Module) -> list[int]:
    """The lines that read or write environment variables."""
    words = {"environ", "environb", "getenv", "putenv"}
    lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in words]
    lines += [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "os" and words & {alias.name for alias in node.names}
    ]
    return sorted(lines)


def long_functions(tree: ast.Module) -> list[str]:
    return [
        f"{node.name} at line {node.lineno}: {length} lines"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > LONGEST_FUNCTION
    ]


def test_there_is_something_to_check() -> None:
    assert {named(path).split("/")[0] for path in SOURCES} == {*MAY_IMPORT, "src"}


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_files_and_functions_are_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE
    assert long_functions(tree_of(path)) == []


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_modules_are_named_after_what_they_hold(path: Path) -> None:
    words = {word for part in path.relative_to(ROOT).with_suffix("").parts for word in part.split("_")}
    assert words & EMPTY_NAMES == set()


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_no_code_on_the_wire(path: Path) -> None:
    assert [name for name in imported(tree_of(path)) if name.split(".")[0] in NO_CODE_ON_THE_WIRE] == []


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_imports_point_downwards(path: Path) -> None:
    layer = named(path).split("/")[0]
    if layer == "src":
        assert [name for name in imported(tree_of(path)) if is_bare(name)] == []
    else:
        assert layer_faults(layer, imported(tree_of(path))) == []


def upward(path: Path) -> Iterator[tuple[str, str]]:
    """The imports of a module that lead to a room above its own, within its layer."""
    layer, room, *_ = path.relative_to(ROOT).parts
    importer = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for name in imported(tree_of(path)):
        package, _, inner = name.partition(".")
        parts = inner.split(".")
        if package != "maniple" or parts[0] != layer or len(parts) < 3 or room not in ROOMS[layer]:
            continue
        if ROOMS[layer].index(parts[1]) > ROOMS[layer].index(room):
            yield importer, ".".join(parts[:3])


def rooms_of(layer: str) -> list[Path]:
    """The folders of modules of a layer."""
    return sorted({path.parent for path in (ROOT / layer).rglob("*.py")} - {ROOT / layer})


def test_imports_between_rooms_point_downwards() -> None:
    found = {edge for path in SOURCES if named(path).split("/")[0] in ROOMS for edge in upward(path)}
    assert found == set(UPWARDS)


@pytest.mark.parametrize("layer", ROOMS)
def test_every_module_is_in_a_room_of_at_most_twenty(layer: str) -> None:
    assert [path.name for path in (ROOT / layer).glob("*.py")] == ["__init__.py"]
    assert {room.relative_to(ROOT / layer).parts[0] for room in rooms_of(layer)} == set(ROOMS[layer])
    crowded = {named(room): len(list(room.glob("*.py"))) - 1 for room in rooms_of(layer)}
    assert {room: count for room, count in crowded.items() if count > MOST_MODULES} == {}


@pytest.mark.parametrize("room", [room for layer in ROOMS for room in rooms_of(layer)], ids=named)
def test_every_room_says_what_lives_in_it(room: Path) -> None:
    said = ast.get_docstring(tree_of(room / "__init__.py"))
    assert said is not None
    assert len(said.splitlines()) >= 3


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_environment_variables_are_read_in_one_module(path: Path) -> None:
    if named(path) != "runtime/process/environment.py":
        assert environment_uses(tree_of(path)) == []


@pytest.mark.parametrize("layer", sorted(MAY_IMPORT))
def test_every_layer_has_its_tests(layer: str) -> None:
    assert list((ROOT / "tests" / layer).rglob("test_*.py"))


def test_test_folders_mirror_the_layers() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders - {"laws", "end_to_end", "face", "zoo", "benchmarks"} <= set(MAY_IMPORT)


def test_the_face_is_small() -> None:
    import maniple

    names = {name for name in (*dir(maniple), *getattr(maniple, "__all__", ())) if not name.startswith("_")}
    assert len(names - set(MAY_IMPORT) - {"annotations"}) < MOST_PUBLIC_NAMES


def test_heavy_packages_are_imported_on_use() -> None:
    code = f"import sys, maniple; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.strip() == "[]"


# Each rule above, shown a program that breaks it.


def test_a_forbidden_import_is_seen() -> None:
    tree = ast.parse("def f():\n    from maniple import strategies\n    import runtime.rank\n    from . import task\n")
    assert layer_faults("runtime", imported(tree)) == [
        "maniple",
        "maniple.strategies",
        "runtime.rank",
        ".",
        "..task",
    ]
    assert layer_faults("strategies", imported(ast.parse("from maniple.mappers.plan import PlanMapper"))) == [
        "maniple.mappers.plan",
        "maniple.mappers.plan.PlanMapper",
    ]
    assert layer_faults("operators", imported(ast.parse("from maniple.trainer import Trainer"))) != []
    assert (
        layer_faults("operators", imported(ast.parse("from maniple.runtime.schedule.schedule import Schedule"))) == []
    )


def test_a_use_of_the_environment_is_seen() -> None:
    assert environment_uses(ast.parse("import os\nos.environ['A']\nos.getenv('A')\nfrom os import environ\n")) == [
        2,
        3,
        4,
    ]


def test_a_long_function_is_seen() -> None:
    body = "def f():\n" + "    pass\n" * LONGEST_FUNCTION
    assert long_functions(ast.parse(body)) == [f"f at line 1: {LONGEST_FUNCTION + 1} lines"]
    assert long_functions(ast.parse("def f():\n" + "    pass\n" * (LONGEST_FUNCTION - 1))) == []
