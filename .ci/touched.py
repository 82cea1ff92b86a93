"""The tests of what a change touches, the nearest first, until the time is up.

    python .ci/touched.py [SECONDS]

A change is what differs from where this branch left `main`: commits, edits and new files. A test file's distance is the
number of imports between it and the nearest changed module:

    0    the change is in the test itself, or in a conftest.py above it
    1    the test names a changed module, or lies where the tests of that module lie
    2    the test names a module that imports a changed one
    ...

Tests that no import leads to, such as those of pages, are chosen where they name a changed file. What is not reached in
time is said: `make test` runs everything.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import grimp
import pytest

if TYPE_CHECKING:
    from grimp import ImportGraph

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("process", "regions", "runtime", "operators", "mappers", "strategies")
ALWAYS = ("tests/test_house.py",)
"""What every change is held against."""
SECONDS = 75.0
MOST_FILES = 40
"""More are not even imported, which takes a second for some."""
DOTTED = re.compile(r"\bmaniple(?:\.\w+)+")


class Deadline:
    """A plugin of pytest that ends a run after the test in which the time is up.

    Args:
        seconds: the time.
    """

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self.session: pytest.Session | None = None
        self.ended: set[str] = set()

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Know whom to stop."""
        self.session = session

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Stop, if it is time to."""
        self.ended.add(nodeid)
        if (
            self.session is not None
            and time.monotonic() >= self._until
            and len(self.ended) < self.session.testscollected
        ):
            self.session.shouldstop = "the time is up"

    @property
    def has_stopped_sound(self) -> bool:
        """Whether the time was up before a test failed."""
        return self.session is not None and bool(self.session.shouldstop) and self.session.testsfailed == 0


def git(*words: str) -> list[str]:
    """The lines that git prints; none where it cannot."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def changed_files() -> list[str]:
    """The paths that differ from where this branch left `main`, new files included."""
    base = git("merge-base", "HEAD", "main") or git("rev-parse", "HEAD")
    return sorted({*git("diff", "--name-only", *base), *git("ls-files", "--others", "--exclude-standard")})


def module_of(path: str) -> str | None:
    """The module that a path is, if it is one of the package."""
    parts = Path(path).with_suffix("").parts
    if Path(path).suffix != ".py" or not parts:
        return None
    if parts[0] in LAYERS:
        parts = ("maniple", *parts)
    elif parts[:2] == ("src", "maniple"):
        parts = parts[1:]
    else:
        return None
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def mirrored(path: str, test: str) -> bool:
    """Whether a test lies where the tests of a path lie, as `tests/runtime/lanes/test_lane.py` does for `lane.py`."""
    source, place = Path(path.removeprefix("src/maniple/")), Path(test)
    return place.parent == Path("tests") / source.parent and place.stem == f"test_{source.stem}"


def named_modules(text: str) -> set[str]:
    """The modules that a test may name: what it imports, and dotted names in what it starts."""
    found = set(DOTTED.findall(text))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def distances(graph: ImportGraph, changed: Iterable[str]) -> dict[str, int]:
    """By module, how many imports lie between it and the nearest changed module."""
    found = {module: 0 for module in sorted(changed) if module in graph.modules}
    front = list(found)
    while front:
        reached = sorted({user for module in front for user in graph.find_modules_that_directly_import(module)})
        distance = found[front[0]] + 1
        front = [module for module in reached if module not in found]
        found |= dict.fromkeys(front, distance)
    return found


def chosen(changed: Iterable[str], graph: ImportGraph, tests: Mapping[str, str]) -> list[str]:
    """The test files of a change, the nearest first.

    Args:
        changed: the paths that the change touches.
        graph: who imports whom.
        tests: the text of every file below `tests`, by path.
    """
    changed = list(changed)
    modules = {path: module for path in changed if (module := module_of(path)) is not None}
    away = distances(graph, modules.values())
    others = {Path(path).name for path in changed if path not in modules}
    near: dict[str, int] = dict.fromkeys(ALWAYS, 0)
    for test, text in sorted(tests.items()):
        if not Path(test).name.startswith("test_"):
            continue
        found = [1 + away[module] for module in named_modules(text) if module in away]
        found += [1 for path in modules if mirrored(path, test)]
        found += [1 for name in others if name in text]
        found += [0 for path in changed if is_own(path, test)]
        if found:
            near[test] = min([*found, near.get(test, len(away) + 1)])
    return sorted(near, key=lambda test: (near[test], test))


def is_own(path: str, test: str) -> bool:
    """Whether a path is the test itself, or what it gets from its folders."""
    if Path(path).name == "conftest.py":
        return Path(path).parent in Path(test).parents
    return path == test


def main(words: list[str]) -> int:
    """Run the tests of the change; the status is pytest's, 0 where the time was up before one failed."""
    changed = changed_files()
    if not changed:
        print("quick: nothing differs from main")
        return 0
    paths = sorted((ROOT / "tests").rglob("*.py"))
    tests = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    graph = grimp.build_graph("maniple", exclude_type_checking_imports=True, cache_dir=None)
    files = [test for test in chosen(changed, graph, tests) if test in tests]
    near, far = files[:MOST_FILES], files[MOST_FILES:]
    print(f"quick: {len(changed)} changed files; the nearest {len(near)} of {len(files)} test files")
    os.chdir(ROOT)
    deadline = Deadline(float(words[0]) if words else SECONDS)
    status = pytest.main(["-q", "--no-header", *near], plugins=[deadline])
    left = 0 if deadline.session is None else deadline.session.testscollected - len(deadline.ended)
    if far or left:
        print(f"quick: not run: {left} tests of these, and {len(far)} files; `make test` runs all")
    return 0 if deadline.has_stopped_sound else int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
