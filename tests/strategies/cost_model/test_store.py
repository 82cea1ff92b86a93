"""The store: what is measured is there for the next program, nothing is lost, and nothing foreign is used."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from maniple.process.error import RequestError
from maniple.strategies.cost_model.measurement import Measurement, Measurements, Pass, TaskKey, write_measurements
from maniple.strategies.cost_model.store import Store

ADDS = """
import sys
from pathlib import Path
from maniple.strategies.cost_model.measurement import Measurement, Measurements, Pass, TaskKey
from maniple.strategies.cost_model.store import Store

folder, name = sys.argv[1:]
store = Store(Path(folder))
print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    found = Measurements.here()
    found.tasks[TaskKey(f"{name}.forward", str(number), (), 1)] = Measurement((Pass(1 + number, 0),), 1, 0.0, 4)
    store.add(found)
"""


def task(kind: str, *medians_ns: int) -> Measurements:
    found = Measurements.here()
    passes = tuple(Pass(median_ns, 0) for median_ns in medians_ns or (5,))
    found.tasks[TaskKey(kind, "Relu()", ("4x4:float32",), 1)] = Measurement(passes, 16, 16.0, 64)
    return found


def test_what_is_added_is_read_again_and_the_first_measurement_stays(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "when needed"
    assert Store(folder).read() == Measurements.here()
    Store(folder).add(task("relu.forward"))
    Store(folder).add(task("relu.backward"))
    Store(folder).add(task("relu.forward", 7))
    found = Store(folder).read()
    assert {key.kind: value.median_ns for key, value in found.tasks.items()} == {"relu.forward": 5, "relu.backward": 5}


def test_the_measurement_of_more_passes_stays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for medians_ns in ((5,), (5, 9, 7), (4, 4)):
        store.add(task("relu.forward", *medians_ns))
    assert store.read() == task("relu.forward", 5, 9, 7)


def test_passes_that_count_no_more_were_timed_too(tmp_path: Path) -> None:
    """What was timed anew is kept, though no more passes count than before."""
    store, anew = Store(tmp_path), task("relu.forward", 6, 6, 6)
    (key,) = anew.tasks
    anew.tasks[key] = replace(anew.tasks[key], dropped=3)
    for found in (task("relu.forward", 5, 9, 7), anew, task("relu.forward", 1, 1, 1, 1)):
        store.add(found)
    assert store.read() == anew


def test_processes_that_add_at_once_lose_nothing(tmp_path: Path) -> None:
    names = ("one", "two", "three")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ADDS, str(tmp_path), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in names
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.communicate("go\n", timeout=60)
        assert process.returncode == 0
    found = Store(tmp_path).read().tasks
    assert {(key.kind, key.body) for key in found} == {(f"{n}.forward", str(i)) for n in names for i in range(20)}


@pytest.mark.parametrize("what", ["device", "software"])
def test_what_another_computer_measured_is_refused(tmp_path: Path, what: str) -> None:
    store = Store(tmp_path)
    write_measurements(store.path, replace(task("relu.forward"), **{what: "something else"}))
    for use in (store.read, lambda: store.add(task("relu.backward"))):
        with pytest.raises(RequestError, match=rf"{what}: expected '.*', got 'something else'; remove it, or name it"):
            use()
    assert "relu.backward" not in store.path.read_text(encoding="utf-8")


def test_a_broken_file_is_refused_with_its_entry(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(task("relu.forward"))
    document = json.loads(store.path.read_text(encoding="utf-8"))
    document["tasks"][0]["passes"][0]["median_ns"] = 0
    store.path.write_text(json.dumps(document), encoding="utf-8")
    said = r"costs-\w+\.json: tasks\[0\]\.passes\[0\]\.median_ns: expected an integer >= 1, got 0"
    with pytest.raises(RequestError, match=said):
        store.read()
    store.path.write_text('{"version": 4, "dev', encoding="utf-8")
    with pytest.raises(RequestError, match=r"costs-\w+\.json: line 1, column 16: not a whole JSON document"):
        store.add(task("relu.backward"))


def test_a_place_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RequestError, match="have MANIPLE_CACHE name a folder that can"):
        Store(tmp_path / "file").add(task("relu.forward"))
