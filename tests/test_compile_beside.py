"""The first search of an installation compiles in two processes: each a part, and neither is left."""

from __future__ import annotations

import subprocess
import sys

import pytest

from maniple import compile_beside
from maniple.process.compilation import compiled
from maniple.process.error import RequestError

pytestmark = pytest.mark.simulator

COMPILED = """
from maniple.runtime.schedule import traffic
from maniple.strategies.simulation.compilation import compile_all, compile_timing
from maniple.strategies.timing import agenda, delta, tables

modules = (agenda, delta, tables, traffic)
kernels = {f"{m.__name__}.{n}": k for m in modules for n, k in vars(m).items() if hasattr(k, "signatures")}

def signatures():
    return {name: set(kernel.signatures) for name, kernel in kernels.items() if kernel.signatures}

compile_timing()
beside = signatures()
compile_all()
print(sorted(beside))
print(sorted(name for name, found in signatures().items() if found - beside.get(name, set())))
"""


def test_what_is_compiled_beside_the_second_process_is_all_of_the_timing() -> None:
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=True, timeout=900)
    beside, missed = (eval(line) for line in done.stdout.splitlines())
    assert {"maniple.strategies.timing.delta.settle", "maniple.runtime.schedule.traffic.charge"} < set(beside)
    assert missed == []


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The second processes; they compile nothing, and end when their input does."""
    found: list[subprocess.Popen[bytes]] = []

    class Started(subprocess.Popen[bytes]):
        def __init__(self, command: list[str], **options: object) -> None:
            assert command[-2:] == ["-m", compile_beside.__name__]
            super().__init__([sys.executable, "-c", "input()"], **{**options, "stdin": subprocess.PIPE})  # type: ignore[call-overload]
            found.append(self)

    monkeypatch.setattr(subprocess, "Popen", Started)
    monkeypatch.setattr(compiled, "progress", lambda: (0, 9))
    monkeypatch.setattr(compile_beside, "available_cores", lambda: 2)
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def test_it_is_waited_for_and_what_it_compiled_is_loaded(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(compile_beside, "compile_timing", lambda: calls.append("timing"))
    monkeypatch.setattr(compile_beside, "compile_all", lambda: calls.append(f"all {started[0].returncode is None}"))

    def say(text: str) -> None:
        calls.append(text)
        end(started[0])

    with compile_beside.compile_beside(say):
        assert started[0].poll() is None
        calls.append("context")
    said = "compiling the simulator, once for this installation: 0 of 9 functions"
    assert list(dict.fromkeys(calls)) == ["context", "timing", said, "all False"]


def test_it_is_ended_with_a_context_that_fails(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_beside, "compile_all", lambda: pytest.fail("nobody searches"))
    with pytest.raises(RequestError, match="no such model"), compile_beside.compile_beside(pytest.fail):
        raise RequestError("no such model")
    assert started[0].returncode is not None
    end(started[0])


@pytest.mark.parametrize(("progress", "cores"), [((1, 9), 2), ((0, 9), 1)])
def test_no_second_process_where_something_is_compiled_or_there_is_one_core(
    progress: tuple[int, int],
    cores: int,
    started: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiled, "progress", lambda: progress)
    monkeypatch.setattr(compile_beside, "available_cores", lambda: cores)
    calls: list[str] = []
    monkeypatch.setattr(compile_beside, "compile_all", lambda: calls.append("all"))
    with compile_beside.compile_beside(pytest.fail):
        calls.append("context")
    assert calls == ["context", "all"]
    assert started == []
