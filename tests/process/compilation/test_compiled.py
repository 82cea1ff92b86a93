"""What is compiled is kept under the contents of all that its code is made of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
import pytest

from maniple.process.compilation import compiled, linkable_code
from maniple.strategies.simulation.compilation import compile_all, told

LEAF = """
from maniple.process.compilation.compiled import leaf
from toy.settings import STEP

@leaf
def step(x):
    if x < 0:
        raise ValueError("a step back")
    return x + STEP
"""
MIDDLE = """
from maniple.process.compilation.compiled import inner
from toy import low

@inner
def steps(x, count):
    for _ in range(count):
        x = low.step(x)
    return x
"""
TOP = """
from maniple.process.compilation.compiled import kernel
from toy.middle import steps

@kernel
def walk(x):
    return steps(x, 3)
"""
APART = """
from maniple.process.compilation.compiled import kernel

@kernel
def twice(x):
    return 2 * x
"""
PROGRAM = """
import json
from numba.core import event
from toy import apart, top

compiled = []

class Compiling(event.Listener):
    def on_start(self, told):
        function = told.data["dispatcher"].py_func
        if function.__module__.startswith("toy."):
            compiled.append(function.__name__)
    def on_end(self, told):
        pass

with event.install_listener("numba:compile", Compiling()):
    results = [top.walk(1), apart.twice(4)]
try:
    top.walk(-5)
except ValueError as error:
    results.append(str(error))
print(json.dumps([results, sorted(compiled)]))
"""

Toy = Callable[[str, str], tuple[list[object], list[str]]]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """A package of kernels in a folder of its own: changed in one file, then run as a new process."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "toy").mkdir()
    files = {"__init__": "", "settings": "STEP = 1\n", "low": LEAF, "middle": MIDDLE, "top": TOP, "apart": APART}
    for name, text in files.items():
        (folder / "toy" / f"{name}.py").write_text(text)

    def run(name: str, text: str) -> tuple[list[object], list[str]]:
        (folder / "toy" / f"{name}.py").write_text(text)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
        command = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
        results, compiled_anew = json.loads(done.stdout)
        return results, compiled_anew

    return run


def test_a_change_compiles_what_depends_on_it_and_nothing_else(toy: Toy) -> None:
    every = ["step", "steps", "twice", "walk"]
    assert toy("settings", "STEP = 1\n") == ([4, 8, "a step back"], every)
    assert toy("settings", "STEP = 1\n") == ([4, 8, "a step back"], [])
    # A function three calls down, in another file.
    assert toy("low", LEAF.replace("x + STEP", "x + 2 * STEP")) == ([7, 8, "a step back"], ["step", "steps", "walk"])
    # What it raises comes from code that was loaded, and linked into a caller that is compiled anew.
    assert toy("top", TOP.replace("3)", "3) + 1")) == ([8, 8, "a step back"], ["walk"])
    # A constant, in a file without compiled functions.
    assert toy("settings", "STEP = 10\n") == ([62, 8, "a step back"], ["step", "steps", "walk"])
    assert toy("apart", APART.replace("2 *", "3 *")) == ([62, 12, "a step back"], ["twice"])
    # What was there before is there still.
    assert toy("apart", APART) == ([62, 8, "a step back"], [])


def test_a_digest_is_of_source_modules_functions_and_constants() -> None:
    def digest(source: bytes = b"x", **names: object) -> str:
        return compiled.digest(source, {"__name__": "maniple.mine", **names})

    here = sys.modules["maniple.regions.columns.boxes"]
    plain = sys.modules["maniple.process.compilation"]
    different: list[dict[str, object]] = [
        {},
        {"A": 1},
        {"A": 1.0},
        {"A": True},
        {"B": 1},
        {"A": (1, "x")},
        {"A": np.zeros(3)},
        {"A": np.zeros(3, dtype=np.int64)},
        {"A": here},
        {"A": plain},
    ]
    found = [digest(**names) for names in different]
    assert len({*found, digest(b"y")}) == len(different) + 1
    assert found == [digest(**names) for names in different]
    # Other packages have versions, and what compiled code cannot use changes nothing of it.
    assert digest(A=np, B=digest, C=[1], __file__="elsewhere") == digest()


def test_the_functions_of_a_module_are_kept_in_its_folder() -> None:
    compile_all()
    done, functions = compiled.progress()
    assert 0 < done <= functions
    for name, module in compiled._MODULES.items():
        assert module.folder.name == f"{compiled.PREFIX}{'.'.join(name.split('.')[-2:])}-{module.digest}"


def test_whoever_asks_is_told_what_is_compiled() -> None:
    said: list[str] = []

    def added(x: int) -> int:
        return x + 1

    with told(said.append):
        assert numba.njit(added)(1) == 2
        assert len(said) == 1
        assert numba.njit(added)(1) == 2
    numba.njit(added)(1)
    done, functions = compiled.progress()
    assert said == [f"compiling the simulator, once for this installation: {done} of {functions} functions"] * 2


def test_what_another_version_uses_stays_and_what_none_has_used_for_long_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {name: tmp_path / f"{compiled.PREFIX}{name}" for name in ("own", "other", "old")}
    for folder in folders.values():
        folder.mkdir()
    (tmp_path / "boxes.cpython-311.pyc").touch()
    now = folders["own"].stat().st_mtime
    long_ago = now - 2 * compiled.UNUSED_S
    os.utime(folders["old"], (long_ago, long_ago))
    os.utime(tmp_path / "boxes.cpython-311.pyc", (long_ago, long_ago))
    monkeypatch.setattr(compiled, "_MODULES", {"own": compiled._Module("", folders["own"])})
    compiled.remove_unused()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {folders["own"].name, folders["other"].name, "boxes.cpython-311.pyc"}


@numba.njit  # type: ignore[untyped-decorator]
def _third(x: int) -> int:
    return x // 3


def test_what_is_packed_is_linked_by_callers_that_are_compiled_later() -> None:
    @numba.njit  # type: ignore[untyped-decorator]
    def before(x: int) -> int:
        return int(_third(x)) + 1

    @numba.njit  # type: ignore[untyped-decorator]
    def after(x: int) -> int:
        return int(_third(x)) + 2

    assert before(9) == 4
    (library,) = [found.library for found in _third.overloads.values()]
    assert library._shared_module is not None
    linkable_code.pack(_third)
    assert library._shared_module is None
    assert (_third(9), before(9), after(9)) == (3, 4, 5)
    assert library._shared_module is not None, "after() has linked it"
