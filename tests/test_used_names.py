"""No function, method or class that nothing uses: the product names each somewhere else than where it is defined."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("process", "regions", "runtime", "operators", "mappers", "strategies")
FACE = ROOT / "src" / "maniple"
SOURCES = sorted(
    [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    + [path for part in ("*.py", "testing/*.py", "zoo/*.py") for path in FACE.glob(part)]
)
# What programs are told to use counts as used, and so does what an entry point names.
PAGES = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "examples").glob("*.py"), ROOT / "pyproject.toml"]
# Decorators that put what they decorate where it is found: handlers, commands, the registries of numba.
REGISTERING = frozenset({"handles", "command", "group", "overload", "intrinsic", "lower_builtin", "register"})
# What nothing of this uses and stays, with the reason.
KEPT = {
    "operators/graph/pool_methods.py: adaptive_avg_pool": "a method of graphs, as torch.nn has the layer",
    "operators/graph/pool_methods.py: adaptive_max_pool": "as above",
    "runtime/devices/null_device.py: pause": "tests hold a device, to see who waits for it",
    "runtime/observe/peak.py: measure_peak": "benchmarks/memory.py measures with it",
    "operators/pipeline_order/pipeline_order.py: lane_in_flight": "tests hold orders against the tables of papers",
    "src/maniple/worker_pool.py: pids": "tests see that no process is left",
    "strategies/frontier/algebra.py: thin_out": "completes the algebra, whose laws are tested together",
    "operators/library/dense/torch_recurrent.py: TorchRecurrentCell": "tests compare the kernels of cells with it",
    "process/torch_internals.py: _should_skip_dynamo": "torch asks it of each class that hears of calls",
    "process/compilation/inner_library.py: define_pipelines": "numba asks it for its passes",
    "strategies/pipeline/ideals.py: augment": "the augmentation of the paper, which tests draw",
    "strategies/simulation/compilation.py: on_end": "numba tells it that a function is compiled",
    "strategies/simulation/compilation.py: on_start": "as above, that one begins",
    "strategies/timing/ledger.py: add_edges": "tests write graphs of rows with it, without regions",
}


def defined(tree: ast.Module) -> Iterator[str]:
    """The functions, methods and classes of a module, but those that a decorator registers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name.startswith("__") or registered(node):
                continue
            yield node.name


def registered(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    found = {part.attr if isinstance(part, ast.Attribute) else part.id for part in map(called, node.decorator_list)}
    return bool(found & REGISTERING)


def called(decorator: ast.expr) -> ast.Attribute | ast.Name:
    while isinstance(decorator, ast.Call | ast.Subscript):
        decorator = decorator.func if isinstance(decorator, ast.Call) else decorator.value
    assert isinstance(decorator, ast.Attribute | ast.Name)
    return decorator


def used(tree: ast.Module) -> Iterator[str]:
    """The names that a module uses: as such, as an attribute, imported, or written in a string (a table of names)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            yield from re.findall(r"\w+", node.value)


def test_every_name_is_used() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}
    uses = {name for tree in trees.values() for name in used(tree)}
    uses.update(word for page in PAGES for word in re.findall(r"\w+", page.read_text(encoding="utf-8")))
    unused = {
        f"{path.relative_to(ROOT).as_posix()}: {name}"
        for path, tree in trees.items()
        for name in defined(tree)
        if name not in uses
    }
    assert unused - set(KEPT) == set()


def test_an_unused_name_is_seen() -> None:
    text = "def a(): ...\n@handles('x')\ndef b(): ...\nclass C:\n    def d(self): ...\nC().e\n"
    tree = ast.parse(text + "HOMES = {'f': 'g.h:i'}\n")
    assert list(defined(tree)) == ["a", "C", "d"]
    assert {"C", "e", "f", "g", "h", "i"} <= set(used(tree))
