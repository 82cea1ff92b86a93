"""The examples alone and on two nodes, under every strategy, with the same losses.

Most of them run one after the other in the processes of two launches, one alone and one on two nodes. What a launch of
its own shows (options of the launcher, what a process imports, plug-ins) has one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(600), pytest.mark.usefixtures("forked_files")]

ROOT = Path(__file__).resolve().parent.parent.parent
SERIES = Path(__file__).resolve().parent / "scripts" / "series.py"
DIGITS = ROOT / "examples" / "digits.py"
CHOLESKY = ROOT / "examples" / "cholesky.py"
TESTED = {  # each has a test of its own below
    *("cholesky", "custom_device", "custom_launcher", "custom_mapper", "custom_transport", "digits"),
}
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.stem not in TESTED]
EPOCHS = 2
STEPS = EPOCHS * 23
LAST_LINE = re.compile(r"test accuracy \d+\.\d %, \d+\.\d s, \d+\.\d MB moved")

# Started first in every process of a run, the launcher too. numba may keep its own compiled code in its own cache.
NO_PICKLE = """
import pickle, sys

def refuse(*args, **kwargs):
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("numba."):
            return None
        frame = frame.f_back
    sys.stderr.write("PICKLE WAS USED\\n")
    raise RuntimeError("pickle was used")

def guarded(function):
    def call(*args, **kwargs):
        refuse()
        return function(*args, **kwargs)
    return call

for name in ("dump", "dumps", "load", "loads"):
    setattr(pickle, name, guarded(getattr(pickle, name)))
for name in ("Pickler", "Unpickler", "_Pickler", "_Unpickler"):
    kind = getattr(pickle, name)
    setattr(pickle, name, type(name, (kind,), {"__init__": guarded(kind.__init__)}))
"""


@dataclass(frozen=True)
class Ended:
    out: str
    err: str
    folder: Path

    def losses(self) -> list[float]:
        return [float(line) for line in (self.folder / "losses.txt").read_text().splitlines()]


def run(folder: Path, *arguments: str, nodes: int = 0, python_path: Path | None = None) -> Ended:
    """Run a program to its end in a folder of its own; with nodes, under the launcher."""
    folder.mkdir()
    launcher = ["-m", "maniple.cli", "run", "--nodes", str(nodes), "--log-dir", str(folder / "logs")] if nodes else []
    paths = [] if python_path is None else [str(python_path)]
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    ended = subprocess.run(
        [sys.executable, *launcher, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return Ended(ended.stdout, ended.stderr, folder)


OWN = ("--epochs", str(EPOCHS), "--losses", "losses.txt")


def series(folder: Path, programs: Mapping[str, tuple[str, ...]], nodes: int = 0) -> dict[str, Ended]:
    """Run programs one after the other in the processes of one launch, each in a folder of its own, by its name."""
    file = folder / "series.json"
    file.write_text(json.dumps([[str(folder / name), program] for name, program in programs.items()]))
    run(folder / "all", str(SERIES), str(file), nodes=nodes)
    return {name: Ended((folder / name / "out-0").read_text(), "", folder / name) for name in programs}


def check(found: Ended, alone: Ended, nodes: int) -> None:
    """Near the losses of one process, one last line, and a timeline of every rank."""
    wanted = alone.losses()
    assert len(wanted) == len(found.losses()) == STEPS
    assert wanted[-1] < 0.9 * wanted[0]
    # A NaN on either side fails: the comparison is for what is near, not for what is far.
    far = [pair for pair in zip(found.losses(), wanted, strict=True) if not abs(pair[0] - pair[1]) <= 1e-4 * pair[1]]
    assert far == []
    lines = found.out.rstrip("\n").splitlines()
    assert LAST_LINE.fullmatch(lines[-1])
    assert sum(LAST_LINE.search(line) is not None for line in lines) == 1
    assert (float(lines[-1].split()[-3]) > 0) == (nodes > 1)
    events = json.loads((found.folder / "digits-timeline.json").read_text())["traceEvents"]
    tasks = {(event["pid"], event["name"]) for event in events if event["ph"] == "X" and event["cat"] == "task"}
    assert {rank for rank, _ in tasks} == set(range(max(1, nodes)))
    assert any("forward" in name for _, name in tasks)
    assert any("update" in name for _, name in tasks)
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in events if event["ph"] == "X")
    named = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert named == {"critical path", *(f"node {rank} (rank {rank})" for rank in range(max(1, nodes)))}


# Data parallelism is trained without pickle below, the expert plan from a file; the laws train every strategy.
STRATEGIES = ("model_parallel", "spatial", "random")


@pytest.fixture(scope="module")
def on_nodes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """What ran on two nodes, one after the other."""
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("nodes")
    saved = str(folder / "my-plan.json")
    programs: dict[str, tuple[str, ...]] = {example.stem: (str(example),) for example in [*EXAMPLES, CHOLESKY]}
    programs |= {strategy: (str(DIGITS), *OWN, "--strategy", strategy) for strategy in STRATEGIES}
    programs["saved"] = (str(DIGITS), *OWN, "--strategy", "expert", "--save-plan", saved)
    programs["again"] = (str(DIGITS), *OWN, "--plan", saved)
    return series(folder, programs, nodes=2)


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory: pytest.TempPathFactory, on_nodes: dict[str, Ended]) -> dict[str, Ended]:
    """What ran alone, one after the other."""
    saved = on_nodes["saved"].folder.parent / "my-plan.json"
    programs: dict[str, tuple[str, ...]] = {example.stem: (str(example),) for example in [*EXAMPLES, CHOLESKY]}
    programs["alone"] = (str(DIGITS), *OWN)
    # A plan for two processors runs in one process too, on two processors of its own.
    programs["again"] = (str(DIGITS), *OWN, "--plan", str(saved))
    return series(tmp_path_factory.mktemp("one"), programs)


@pytest.fixture(scope="module")
def alone(in_one_process: dict[str, Ended]) -> Ended:
    return in_one_process["alone"]


def test_digits_in_one_process(alone: Ended) -> None:
    check(alone, alone, nodes=0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_digits_on_two_nodes(strategy: str, alone: Ended, on_nodes: dict[str, Ended]) -> None:
    check(on_nodes[strategy], alone, nodes=2)


def test_digits_with_a_saved_plan(alone: Ended, on_nodes: dict[str, Ended], in_one_process: dict[str, Ended]) -> None:
    check(on_nodes["again"], alone, nodes=2)
    assert on_nodes["again"].losses() == on_nodes["saved"].losses()
    check(in_one_process["again"], alone, nodes=0)


def test_digits_on_two_nodes_without_pickle(alone: Ended, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_PICKLE)
    found = run(tmp_path / "run", str(DIGITS), *OWN, nodes=2, python_path=tmp_path / "site")
    check(found, alone, nodes=2)
    logs = [path.read_text() for path in (tmp_path / "run" / "logs").rglob("*") if path.is_file()]
    assert len(logs) == 2
    assert all("PICKLE WAS USED" not in told for told in (found.err, *logs))


def test_pickle_does_raise_without_pickle(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_PICKLE)
    for code in ("pickle.dumps(1)", "pickle.Pickler(None)", "pickle.loads(b'')"):
        ended = subprocess.run(
            [sys.executable, "-c", f"import pickle; {code}"],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 1
        assert "PICKLE WAS USED" in ended.stderr


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("custom_*.py")), ids=lambda path: path.stem)
def test_an_example_of_a_plug_in_is_short(example: Path) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.parametrize("nodes", ["in_one_process", "on_nodes"])
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(example: Path, nodes: str, request: pytest.FixtureRequest) -> None:
    out = request.getfixturevalue(nodes)[example.stem].out
    assert out != ""
    assert "BAD" not in out


@pytest.mark.parametrize(("nodes", "processors"), [(0, 1), (2, 2)])
def test_a_custom_mapper_changes_places_and_nothing_else(nodes: int, processors: int, tmp_path: Path) -> None:
    own = ("--processors", str(processors)) if nodes else ()
    out = run(tmp_path / "run", *own, str(ROOT / "examples" / "custom_mapper.py"), nodes=nodes).out
    default, odd_first = (part.split("sum ")[0] for part in out.split("mapper ")[1:3])
    places = [re.findall(r"point \d ran on (p\d+) of node \d \(rank \d\)", part) for part in (default, odd_first)]
    assert [len(found) for found in places] == [6, 6]
    assert places[0] == sorted(places[0])
    if nodes:
        assert len(set(places[0])) == 4
        assert places[1] == ["p3", "p0", "p2", "p0", "p1", "p0"]
    assert out.rstrip().endswith("the same under both mappers: True")


@pytest.mark.parametrize("nodes", ["in_one_process", "on_nodes"])
def test_a_traced_factorisation_is_right_every_time(nodes: str, request: pytest.FixtureRequest) -> None:
    out = request.getfixturevalue(nodes)["cholesky"].out
    assert out.splitlines() == [f"matrix {seed}: relative error below 1e-14" for seed in range(3)]


# Stands for ssh: it writes down what every user of a host could see of it, and runs the shell here.
SSH = """#!/bin/sh
echo "$@" >> "$SEEN"
shift 3
exec $1
"""
ANNOUNCED = """[maniple.devices]
file = custom_device:FileDevice
[maniple.transports]
unix = custom_transport:UnixTransport
[maniple.launchers]
shell = custom_launcher:SshLauncher
"""


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command lines of ssh, which is a stand-in."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(SSH)
    (tmp_path / "bin" / "ssh").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    return tmp_path / "seen"


@pytest.fixture
def announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package is installed that announces the parts of the examples."""
    site = tmp_path / "site" / "parts-1.0.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: parts\nVersion: 1.0\n")
    (site / "entry_points.txt").write_text(ANNOUNCED)
    paths = [str(site.parent), str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


def losses(out: str) -> list[list[float]]:
    found = [[float(loss) for loss in line.split()[1:]] for line in out.splitlines() if line.startswith("losses ")]
    assert all(len(one) == 3 and one[2] < one[0] for one in found)
    return found


@pytest.mark.usefixtures("seen")
@pytest.mark.parametrize(
    ("example", "said"),
    [
        ("custom_device", "the transport of other tiles: their devices export no memory"),
        ("custom_transport", "through Unix sockets"),
        ("custom_launcher", "maniple: 2 ranks exchange tiles through ZeroMQ"),
    ],
)
def test_a_part_of_ones_own_changes_no_loss(example: str, said: str, tmp_path: Path) -> None:
    ended = run(tmp_path / "run", str(ROOT / "examples" / f"{example}.py"))
    without, with_part = losses(ended.out)
    assert with_part == without
    assert said in ended.err.splitlines()[-1]


@pytest.mark.usefixtures("announced")
def test_announced_parts_are_asked_for_by_name(seen: Path, tmp_path: Path, on_nodes: dict[str, Ended]) -> None:
    example = str(ROOT / "examples" / "three_steps.py")
    (without,) = losses(on_nodes["three_steps"].out)
    parts = ("--device", "file", "--transport", "unix", "--launcher", "shell:127.0.0.1,127.0.0.2")
    ended = run(tmp_path / "run", *parts, example, nodes=2)
    assert losses(ended.out) == [without]
    assert "exchange tiles through Unix sockets" in ended.err
    # Nobody but the ranks reads their variables.
    told = sorted(seen.read_text().splitlines())  # both run at the same time
    assert told == [f"-o BatchMode=yes 127.0.0.{node} sh -s" for node in (1, 2)]
    shown = run(tmp_path / "dry", "--dry-run", *parts, example, nodes=2)
    assert shown.err == "maniple: tiles travel within a host through Unix sockets, between hosts through Unix sockets\n"
    assert ["MANIPLE_INTERFACE=127.0.0.2" in line for line in shown.out.splitlines()] == [False, True]


@pytest.mark.usefixtures("announced")
def test_a_rank_that_fails_under_another_launcher_ends_all(seen: Path, tmp_path: Path) -> None:
    failing = tmp_path / "failing.py"
    failing.write_text("import maniple as mp\nif mp.world().rank == 1:\n    raise ValueError('no good')\n")
    own = ("-m", "maniple.cli", "run", "--nodes", "2", "--launcher", "shell:localhost", str(failing))
    ended = subprocess.run(
        [sys.executable, *own], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 1
    assert "error: node 1 (rank 1) raised ValueError: no good" in ended.stderr
    assert len(seen.read_text().splitlines()) == 2
