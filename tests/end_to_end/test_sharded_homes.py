"""ZeRO over real processes: every stage trains as plain data parallelism, by shared memory and by messages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(120), pytest.mark.usefixtures("forked_launches")]

SCRIPT = Path(__file__).resolve().parent / "scripts" / "sharded.py"


@pytest.mark.parametrize("transport", ["shared", "zmq"])
def test_every_stage_trains_as_plain_data_parallelism(tmp_path: Path, transport: str) -> None:
    hosts = ("--ranks-per-node", "2") if transport == "shared" else ("--nodes", "2")
    command = [sys.executable, "-m", "maniple.cli", "run", *hosts, "--transport", transport, str(SCRIPT)]
    ran = subprocess.run(
        [*command, str(tmp_path / "out.json")], check=False, capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 0, ran.stderr
    plain, *stages = json.loads((tmp_path / "out.json").read_text()).values()
    for losses, parameters, moved, _ in stages:
        assert losses == pytest.approx(plain[0], rel=0, abs=1e-10)
        assert moved["predicted"] == moved["measured"]
        for name, value in plain[1].items():
            found, wanted = (torch.tensor(given, dtype=torch.float64) for given in (parameters[name], value))
            assert torch.allclose(found, wanted, rtol=0, atol=1e-10)
    memory = [given for *_, given in (plain, *stages)]
    assert memory[3] < memory[1] < memory[0]
