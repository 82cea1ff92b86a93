"""The first search of an installation compiles in two processes: they do not compile the same, and neither is left."""

from __future__ import annotations

import subprocess
import sys

import pytest

from maniple import compile_beside
from maniple.strategies.lowering import compiled

pytestmark = pytest.mark.simulator

COMPILED = """
from maniple.strategies.lowering import network, tables
from maniple.strategies.simulation.compilation import compile_all, compile_timing
from maniple.strategies.timing import agenda, delta

modules = (agenda, delta, network, tables)
kernels = {f"{m.__name__}.{n}": k for m in modules for n, k in vars(m).items() if hasattr(k, "signatures")}

def signatures():
    return {name: set(kernel.signatures) for name, kernel in kernels.items() if kernel.signatures}

compile_timing()
beside = signatures()
compile_all()
print(sorted(beside))
print(sorted(name for name, found in signatures().items() if found - beside.get(name, set())))
"""


def test_the_second_process_compiles_what_the_first_one_calls() -> None:
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=True, timeout=900)
    beside, missed = (eval(line) for line in done.stdout.splitlines())
    prefix = "maniple.strategies."
    assert {f"{prefix}timing.delta.settle", f"{prefix}lowering.network.traffic"} < set(beside)
    assert missed == []


@pytest.mark.parametrize(("progress", "cores", "starts"), [((0, 9), 2, 1), ((1, 9), 2, 0), ((0, 9), 1, 0)])
def test_a_second_process_runs_where_nothing_is_compiled_and_is_ended_with_the_first(
    progress: tuple[int, int], cores: int, starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Started(subprocess.Popen[bytes]):
        def __init__(self, command: list[str], **options: object) -> None:
            assert command[-2:] == ["-m", compile_beside.__name__]
            super().__init__([sys.executable, "-c", "input()"], **{**options, "stdin": subprocess.PIPE})  # type: ignore[call-overload]
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Started)
    monkeypatch.setattr(compiled, "progress", lambda: progress)
    monkeypatch.setattr(compile_beside, "available_cores", lambda: cores)
    running: list[bool] = []
    monkeypatch.setattr(compile_beside, "compile_all", lambda: running.extend(p.poll() is None for p in started))
    compile_beside.compile_on_two_cores()
    assert running == [True] * starts
    assert len(started) == starts
    for process in started:
        assert process.returncode is not None
        assert process.stdin is not None
        process.stdin.close()
