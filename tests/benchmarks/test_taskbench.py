"""The benchmark as a program, at tiny sizes; no speed is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from taskbench.graph import PATTERNS, TaskGraph
from taskbench.regions import Program
from taskbench.static import Mapped, Schedule, Static, before, offset
from taskbench.system import make

from maniple.process.error import RequestError, RunError

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
FOUND_ON = os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])


def test_the_static_schedule_is_the_one_of_its_table() -> None:
    graph = TaskGraph("stencil_1d", width=4, steps=3)
    orders = [[point for _, point in Schedule(graph, process, 0).tasks] for process in range(2)]
    assert orders == [[1, 0, 1, 0, 0, 1], [2, 3, 2, 3, 2, 3]]  # nobody reads the last step: no point of it goes first


@pytest.mark.jobs
@pytest.mark.timeout(120)
def test_static_runs_every_pattern_and_notices_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", FOUND_ON)
    with Static() as static:
        for pattern in PATTERNS:
            for width, payload in ((1, 16), (2, 32), (5, 4096)):
                static.prepare(TaskGraph(pattern, width, steps=7, radix=3, payload=payload))
                assert static.run(3) > 0
        assert static.peak(0.01) > 0


def test_a_payload_that_changes_under_way_is_noticed(tmp_path: Path) -> None:
    graph = TaskGraph("no_comm", width=2, steps=2)
    (tmp_path / "memory").touch()
    memory = Mapped(str(tmp_path / "memory"), offset(graph, 0, 0, 2))
    schedule = Schedule(graph, 0, memory.address)
    first, second = ((row, 0) for row in schedule.rows)
    schedule.run([first])
    memory.words[(offset(graph, 0, 0, 0) + before(graph)) // 8] = 5
    with pytest.raises(RunError, match=r"step 1, point 0.*expected \(0, 0\).*got \(5, 0\)"):
        schedule.run([second])


@pytest.mark.jobs
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ["maniple", "maniple-replayed", "maniple-untraced"])
def test_maniple_runs_every_pattern(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks check their inputs, so a run that ends was right; iterations differ from replay to replay."""
    monkeypatch.setenv("PYTHONPATH", FOUND_ON)
    with make(name) as system:
        for pattern in PATTERNS:
            system.prepare(TaskGraph(pattern, width=5, steps=6, radix=3, payload=32))
            assert system.run(3) > 0
            assert system.run(0) > 0


def test_a_task_of_maniple_whose_input_is_not_what_it_expects_ends_the_run() -> None:
    program = Program(TaskGraph("no_comm", width=2, steps=3))
    known = program.known.read()
    known[2, 1, 1] = 0  # the runtime brings point 1's payload, as it was asked to
    program.known.write(known)
    with pytest.raises(RunError, match="does not hold what its task wrote"):
        program.run(0, "untraced")


@pytest.mark.jobs
@pytest.mark.timeout(180)
def test_the_script_prints_what_was_asked_for() -> None:
    command = [sys.executable, str(FOLDER / "taskbench.py"), "--system", "static", "--steps", "9", "--rounds", "1"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    (entry,) = json.loads(done.stdout)["results"]
    assert {key: entry[key] for key in ("system", "pattern", "payload_bytes")} == {
        "system": "static",
        "pattern": "stencil_1d",
        "payload_bytes": 16,
    }
    assert entry["metg_us"] is None or entry["metg_us"] > 0  # on a busy host half of the peak may be out of reach
    assert len(entry["curve"]) >= 5
    assert entry["empty_task_us"] > 0


def test_an_unknown_system_and_a_missing_peer_are_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="ray-compiled"):
        make("ray-compield")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RequestError, match=r"pip install 'maniple\[bench\]'"):
        make("ray")
