"""`benchmarks/gpu_checks.py` runs whole on null devices, with no more packages than a machine with a GPU may have."""

from __future__ import annotations

import json
import os
import re
import runpy
import select
import signal
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_checks.py"
NEEDED: dict[str, str] = runpy.run_path(str(PROGRAM))["NEEDED"]
ORDER = ["doctor", "law1", "ranks", "nccl", "digits", "kernels", "steps", "chain", "memory", "capture"]
ORDER += ["prediction", "recording"]
STAND_IN = """
import json, os, sys, time
sys.path.insert(0, {folder!r})
asked = sys.argv[sys.argv.index("--only") + 1:]

def tell(**line):
    print(json.dumps(line), flush=True)

for check in asked:
    tell(begins=check)
    {faults}
    tell(check=check, right=True)
    tell(ends=check)
"""
"""Checks that find nothing wrong but what a test puts there."""


def bare_of() -> list[str]:
    """What a machine may lack: all that the package asks for but what the checks say they need, and more."""
    package = tomllib.loads((PROGRAM.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    names = {re.split("[^a-z-]", each.lower(), maxsplit=1)[0] for each in package["project"]["dependencies"]}
    imported = {"pyzmq": "zmq"}
    return sorted({imported.get(name, name) for name in names} - NEEDED.keys() | {"sklearn"})


def without(folder: Path, *packages: str) -> dict[str, str]:
    """The environment of processes that have some packages not."""
    absent = "".join(f"sys.modules[{name!r}] = None\n" for name in packages)
    (folder / "sitecustomize.py").write_text(f"import sys\n{absent}", encoding="utf-8")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}


def checked(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=840, env=environment)


@pytest.mark.timeout(900)
def test_every_check_runs_on_a_null_device_and_finds_nothing_wrong(tmp_path: Path) -> None:
    trace, bare = tmp_path / "trace.json", without(tmp_path, *bare_of())
    assert bare_of() == ["click", "rich", "sklearn", "zmq"]
    arguments = ["--device", "null", "--small", "--recording", str(trace), "--patience", "600"]
    found = checked(*arguments, environment=bare)
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert [line for line in lines if "error" in line and isinstance(line["error"], str)] == [], found.stderr
    assert found.returncode == 0, found.stdout + found.stderr
    assert list(dict.fromkeys(line["check"] for line in lines)) == ORDER
    assert not lines[0]["wheels"]["zmq"]
    assert all(line["right"] for line in lines if "right" in line)
    assert found.stderr.startswith("more can be checked with: pip install click rich pyzmq scikit-learn\n")
    assert "traceEvents" in json.loads(trace.read_text(encoding="utf-8"))


def supervised(folder: Path, faults: str) -> list[str]:
    """The command of `gpu_checks.py` over checks that are scripted."""
    stand_in, program = folder / "findings.py", folder / "supervised.py"
    told = textwrap.indent(textwrap.dedent(faults), "    ").strip()
    stand_in.write_text(STAND_IN.format(folder=str(PROGRAM.parent), faults=told), encoding="utf-8")
    program.write_text(
        f"import sys\nsys.path.insert(0, {str(PROGRAM.parent)!r})\nimport gpu_checks\nfrom pathlib import Path\n"
        f"gpu_checks.FINDINGS = Path({str(stand_in)!r})\nsys.exit(gpu_checks.main())\n",
        encoding="utf-8",
    )
    return [sys.executable, str(program), "--device", "null", "--recording", str(folder / "trace.json")]


@pytest.mark.parametrize(
    ("faults", "options", "wrong"),
    [
        ("if check == 'ranks': os.kill(os.getpid(), 11)", (), {"ranks": "its process ended with status -11"}),
        (
            "if check == 'ranks': time.sleep(600)",
            ("--patience", "5"),
            {"ranks": "nothing came of it for 5 s, and its process was killed"},
        ),
        (
            """
            if check == 'digits':
                tell(check=check, error="the device failed")
                tell(ends=check)
                os._exit(3)
            """,
            (),
            {"digits": "the device failed"},
        ),
        (
            "if check in ('law1', 'recording'): sys.exit(1)",
            (),
            dict.fromkeys(("law1", "recording"), "its process ended with status 1"),
        ),
    ],
    ids=["ends by a signal", "is silent", "loses the device", "ends"],
)
def test_a_check_that_fails_in_any_way_keeps_no_other_from_running(
    faults: str, options: tuple[str, ...], wrong: dict[str, str], tmp_path: Path
) -> None:
    found = subprocess.run(
        [*supervised(tmp_path, faults), *options], capture_output=True, text=True, check=False, timeout=100
    )
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert [line["check"] for line in lines] == ORDER, found.stderr
    assert {line["check"]: line["error"] for line in lines if "error" in line} == wrong
    assert found.returncode == 1
    times = [line["at_s"] for line in lines]
    assert times == sorted(times)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_may_be_stopped_at_any_time_and_leaves_what_was_found_and_no_process(
    number: signal.Signals, tmp_path: Path
) -> None:
    faults = """
    if check == 'ranks':
        import gpu_findings_end
    """
    waits = "import os, sys, threading\nthreading.Thread(target=lambda: (sys.stdin.read(), os._exit(1))).start()\n"
    (tmp_path / "gpu_findings_end.py").write_text(
        f"{waits}sys.stderr.write(f'{{os.getpid()}}\\n')\nsys.stderr.flush()\nthreading.Event().wait()\n",
        encoding="utf-8",
    )
    process = subprocess.Popen(
        supervised(tmp_path, faults), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    other = next(int(line) for line in process.stderr if line.strip().isdigit())
    ended = os.pidfd_open(other)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)  # of the pipes the other process has one end, too
    assert [json.loads(line)["check"] for line in out.splitlines()] == ["doctor", "law1"]
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert select.select([ended], [], [], 60)[0]
    os.close(ended)


def test_what_is_missing_is_named_before_anything_is_checked(tmp_path: Path) -> None:
    found = checked("--device", "null", environment=without(tmp_path, "msgpack", "networkx"))
    (line,) = map(json.loads, found.stdout.splitlines())
    assert (line["right"], line["next"]) == (False, "pip install msgpack networkx")
    assert found.returncode == 2


def test_without_a_gpu_nothing_is_checked_and_the_reason_is_told() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    found = checked()
    (line,) = map(json.loads, found.stdout.splitlines())
    assert line["gpu"] is None
    assert line["reason"].startswith("--device cuda: this torch is built without CUDA")
    assert found.returncode == 2
