"""Real ranks that share memory: the numbers of ZeroMQ, counted bytes, and a refusal that comes before the run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.jobs, pytest.mark.usefixtures("forked_launches")]

PROGRAM = """
import json, resource, sys
import torch
import maniple as mp
world = mp.world()
graph = mp.Graph("mlp")
x, y = graph.input("x", (24, 784)), graph.input("y", (24,), dtype="int64")
graph.loss(graph.cross_entropy(graph.linear(graph.relu(graph.linear(x, 600)), 10), y))
plan = mp.search(graph, mp.Machine.detect(), strategy="data_parallel")
trainer = mp.Trainer(graph, plan, optimizer=mp.SGD(lr=0.1))
if len(sys.argv) > 2 and world.rank == 1:  # as where shared memory is too small: files may not grow any more
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
chance = torch.Generator().manual_seed(0)
x, y = torch.rand(24, 784, generator=chance), torch.arange(24) % 10
losses = [trainer.step(x, y) for _ in range(5)]
found = {"losses": losses, "bytes": trainer.bytes(), "shared": world.shared is not None}
if world.rank == 0:
    open(sys.argv[1], "w").write(json.dumps(found))
"""


def ended(folder: Path, *options: str, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    script = folder / "program.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-m", "maniple.cli", "run", "--nodes", "2", "--cores", "1", *options]
    command += ["--log-dir", str(folder / "logs"), str(script), str(folder / "found.json"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_all_transports_give_the_same_numbers_and_bytes(tmp_path: Path) -> None:
    found = {}
    for transport, way in (("shared", "shared memory"), ("zmq", "ZeroMQ"), ("gloo", "Gloo")):
        run = ended(tmp_path, "--transport", transport)
        emulated = "2 nodes are emulated on this host"
        assert run.stderr == f"maniple: 2 ranks of this host exchange tiles through {way}; {emulated}\n"
        assert run.returncode == 0
        found[transport] = json.loads((tmp_path / "found.json").read_text())
        assert found[transport].pop("shared") is (transport == "shared")
    assert found["shared"] == found["zmq"] == found["gloo"]
    assert found["shared"]["bytes"]["predicted"] == found["shared"]["bytes"]["measured"] > 0


@pytest.mark.skipif(sys.platform != "linux", reason="promises memory before it is used")
def test_too_little_shared_memory_is_refused_by_all_before_the_first_step(tmp_path: Path) -> None:
    run = ended(tmp_path, arguments=("small",))
    assert run.returncode == 2, run.stderr
    assert "\nerror: node 1 (rank 1): shared memory: this rank needs " in run.stderr
    assert "run with --transport zmq" in run.stderr
    assert run.stderr.count("error") == 1
    assert not (tmp_path / "found.json").exists()


def test_a_transport_that_there_is_not_is_refused(tmp_path: Path) -> None:
    run = ended(tmp_path, "--transport", "share")
    assert run.returncode == 2
    assert "transport 'share': there is no such transport; did you mean 'shared'?" in run.stderr
    assert "shared" in run.stderr
