"""Runs on other machines than the one that is found: null devices, and one from a file."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import maniple as mp

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(180), pytest.mark.usefixtures("forked_launches")]

EXCHANGE, EMULATED = "maniple: 2 ranks of this host exchange tiles", "2 nodes are emulated on this host"
KILLED = """
import os, signal
import torch
import maniple as mp

@mp.task
def shift(x: mp.Read, y: mp.WriteDiscard, number: int) -> None:
    raise NotImplementedError

@shift.variant("cuda")
def shift_there(x, y, number):
    if number == 3 and mp.world().rank == {sender}:
        os.kill(os.getpid(), signal.SIGKILL)
    y.copy_(x[:32])

x, y = mp.region((64, 64), name="x"), mp.region((64, 64), name="y")
mp.fill(x, 1.0)
rows = mp.blocks((2, 1))
for number in range(6):
    mp.index_launch(shift, rows.colors, x[mp.halo(rows, (40, 0))], y[rows], number)
    x, y = y, x
    if mp.world().rank == 0:
        print("step", number, x.read().sum().item(), flush=True)
    else:
        x.read()
"""
LOST = """
import maniple as mp
from maniple.runtime.control.world import current
from maniple.runtime.execution.rank import RankRuntime

@mp.task
def grow(x: mp.ReadWrite) -> None:
    raise NotImplementedError

@grow.variant("cuda")
def grow_there(x):
    x.add_(1)

x = mp.region((64, 64), name="x")
mp.fill(x, 1.0)
rows, world = mp.blocks((2, 1)), current()
for number in range(6):
    if number == 3 and world.rank == {loser}:
        RankRuntime.of(world).processors[world.rank].device.lose("CUDA error: unspecified launch failure")
    mp.index_launch(grow, rows.colors, x[rows])
    found = x.read().sum().item()
    if world.rank == 0:
        print("step", number, found, flush=True)
"""
SCRIPT = Path(__file__).resolve().parent / "scripts" / "digits.py"


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "maniple.cli", "run", "--nodes", "2", *options, str(SCRIPT)]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


def told(*options: str) -> dict[str, Any]:
    found = run(*options)
    assert found.returncode == 0, found.stderr
    document: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return document


@pytest.fixture(scope="module")
def on_cpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two ranks tell whose machine is one from a file."""
    file = tmp_path_factory.mktemp("machine") / "two.toml"
    mp.Machine.cpu(1, ranks=2, name="as I say").save(file)
    return told("--machine", str(file))


def test_two_ranks_with_null_devices_compute_the_bits_of_two_ranks_with_cpus(on_cpus: dict[str, Any]) -> None:
    on_devices = told("--device", "null")
    assert on_devices["kinds"] == ["gpu", "gpu"]
    assert on_devices["predicted"] == on_devices["measured"] > 0
    for key in ("losses", "parameters", "predicted", "measured"):
        assert on_devices[key] == on_cpus[key], key


def test_a_run_says_how_tiles_travel_between_its_gpus() -> None:
    found = run("--device", "null")
    assert found.stderr.splitlines() == [
        f"{EXCHANGE} through memory of their GPUs or ZeroMQ, as rank 0 says; {EMULATED}",
        "maniple: tiles between GPUs of ranks of one host travel through memory of null devices",
    ]
    assert run("--device", "null", "--transport", "zmq").stderr == f"{EXCHANGE} through ZeroMQ; {EMULATED}\n"


@pytest.mark.parametrize("sender", [0, 1])
def test_a_rank_that_is_killed_while_tiles_are_on_their_way_is_named(sender: int, tmp_path: Path) -> None:
    """It dies with tiles of both directions under way: in its streams, in rings, and not read yet."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED.format(sender=sender))
    begun = time.monotonic()
    command = [sys.executable, "-m", "maniple.cli", "run", "--nodes", "2", "--device", "null", str(script)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert found.returncode == 1
    assert f"error: node {sender} (rank {sender}) was killed by signal 9 (SIGKILL) during `" in found.stderr, (
        found.stderr
    )
    assert "step 3" not in found.stdout
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize("loser", [0, 1])
def test_a_device_that_is_lost_ends_the_run_with_its_rank_and_what_the_driver_says(loser: int, tmp_path: Path) -> None:
    script = tmp_path / "lost.py"
    script.write_text(LOST.format(loser=loser))
    command = [sys.executable, "-m", "maniple.cli", "run", "--nodes", "2", "--device", "null", str(script)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert found.returncode == 1, found.stderr
    assert f"node {loser} (rank {loser})" in found.stderr
    assert "the device failed (CUDA error: unspecified launch failure)" in found.stderr
    assert "step 2" in found.stdout
    assert "step 3" not in found.stdout


def test_a_run_is_the_machine_that_it_is_given(on_cpus: dict[str, Any]) -> None:
    assert on_cpus["machine"] == "as I say"
    assert on_cpus["kinds"] == ["cpu", "cpu"]


def test_a_machine_of_other_ranks_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "three.toml"
    mp.Machine.cpu(1, ranks=3).save(file)
    found = run("--machine", str(file))
    assert found.returncode == 2
    assert found.stderr.startswith(f"error: --machine {file}: it has 3 ranks, and 2 are launched"), found.stderr
    assert run("--machine", str(tmp_path / "none.toml")).returncode == 2
