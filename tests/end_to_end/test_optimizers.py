"""Optimizers over real processes: torch's numbers, with rates that change while two steps are under way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from trained_optimizers import OPTIONS, STEPS, Reference, batches, rate_at

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(120), pytest.mark.usefixtures("forked_launches")]

SCRIPT = Path(__file__).resolve().parent / "scripts" / "optimized.py"
HOSTS = "--nodes", "2", "--processors", "2", "--transport", "zmq"


def test_torchs_numbers(tmp_path: Path) -> None:
    """Every optimizer and option of the law, under a random plan each."""
    command = [sys.executable, "-m", "maniple.cli", "run", *HOSTS, str(SCRIPT), str(tmp_path / "out.json")]
    cases = range(len(OPTIONS))
    ran = subprocess.run([*command, *map(str, cases)], check=False, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    for case, (losses, start, parameters, moved) in zip(
        cases, json.loads((tmp_path / "out.json").read_text()), strict=True
    ):
        reference, wanted = Reference({name: tensor(value) for name, value in start.items()}, *OPTIONS[case]), []
        for step, batch in zip(range(STEPS), batches(STEPS), strict=True):
            for group in reference.groups:
                group["lr"] = rate_at(step)
            wanted.append(reference.step(*batch))
        assert losses == pytest.approx(wanted, rel=0, abs=1e-10), OPTIONS[case]
        for name, value in reference.parameters.items():
            torch.testing.assert_close(tensor(parameters[name]), value.detach(), rtol=0, atol=1e-10)
        assert moved["predicted"] == moved["measured"]


def tensor(value: list[float]) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)
