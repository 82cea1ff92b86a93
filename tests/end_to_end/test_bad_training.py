"""What trainings must not be asked for, over two processes: refused by name, nothing half-written, the state kept.

asked for                                   ends with    afterwards
fp16 of products that have no half          2            the checkpoint as it was
a checkpoint without a shard, or cut off    2            the same bytes
one of which a bit is another               2            the same bytes
one of a newer version                      2            the same bytes
one of another graph or optimizer           2            the same bytes
a rate of NaN, by us or by a scheduler      2            parameters and state as they were; a step goes on
a plan of another precision, in place       2            likewise
a loader that ends early on one rank        1            the checkpoint of the last step that both took
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import maniple as mp
from maniple.checkpoint import find, read_manifest
from maniple.process.error import RequestError
from maniple.runtime.control.world import World
from maniple.runtime.machine.world_machine import host_machine
from maniple.testing import local_worlds, run_on_worlds

sys.path.insert(0, str(Path(__file__).resolve().parent / "scripts"))

from refused import batches, network

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(120), pytest.mark.usefixtures("forked_launches")]

SCRIPT = Path(__file__).resolve().parent / "scripts" / "refused.py"
STEPS, SHARD, MANIFEST = 2, "memory-1.safetensors", "manifest.json"


def saved(folder: Path) -> Path:
    """A checkpoint of two steps, each rank's part in a file of its own."""

    def body(world: World) -> None:
        plan = mp.search(network(), host_machine(world), strategy="data_parallel")
        with mp.Trainer(network(), plan, optimizer=mp.optim.AdamW(lr=0.01), world=world) as trainer:
            for batch, _ in zip(batches(40), range(STEPS), strict=False):
                trainer.step(*batch)
            trainer.save(folder)

    run_on_worlds(local_worlds(2), body)
    return find(folder)[0]


def held(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def ask(folder: Path, what: str) -> tuple[int, str]:
    """The exit status and what was said; two processes."""
    command = [sys.executable, "-m", "maniple.cli", "run", "--nodes", "2", str(SCRIPT), what, str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    return ended.returncode, ended.stderr


def truncate(checkpoint: Path) -> None:
    file = checkpoint / SHARD
    file.write_bytes(file.read_bytes()[:-8])


def flip(checkpoint: Path) -> None:
    """One bit of a value: the size stays."""
    file = checkpoint / SHARD
    whole = bytearray(file.read_bytes())
    whole[-50] ^= 1
    file.write_bytes(whole)


def renew(checkpoint: Path) -> None:
    file = checkpoint / MANIFEST
    file.write_text(file.read_text().replace('"version": 2', '"version": 3'))


def edit(checkpoint: Path) -> None:
    file = checkpoint / MANIFEST
    file.write_text(file.read_text().replace('"step": ', '"step": 1'))


def as_first_version(checkpoint: Path) -> tuple[Path, dict[str, Any]]:
    """The manifest as the first version had it, without a digest, so that it can be that of something else."""
    file = checkpoint / MANIFEST
    told = json.loads(file.read_text())
    del told["digest"]
    return file, {**told, "version": 1}


def rename(checkpoint: Path) -> None:
    file, told = as_first_version(checkpoint)
    file.write_text(json.dumps({**told, "fingerprint": told["fingerprint"][::-1]}))


def replace_optimizer(checkpoint: Path) -> None:
    """What the files hold of it is another's: state that is not there."""
    file, told = as_first_version(checkpoint)
    told["optimizer"][1]["amsgrad"] = True
    file.write_text(json.dumps(told))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (truncate, "the file was damaged after it was written"),
        (lambda checkpoint: (checkpoint / SHARD).unlink(), "no whole checkpoint there"),
        (flip, f"{SHARD}: expected bytes of checksum"),
        (edit, "the file was damaged or edited after it was written"),
        (renew, "a newer maniple wrote this checkpoint"),
        (rename, "another fingerprint than graph 'small'"),
        (replace_optimizer, "max_exp_avg_sq"),
    ],
    ids=["truncated", "missing", "one bit", "edited", "newer", "graph", "optimizer"],
)
def test_a_checkpoint_that_is_not_this_training_s_is_refused(
    tmp_path: Path, damage: Callable[[Path], object], expected: str
) -> None:
    damage(saved(tmp_path))
    before = held(tmp_path)
    status, said = ask(tmp_path, "nothing")
    assert status == 2, said
    assert expected in said
    assert len([line for line in said.splitlines() if line.startswith("error: ")]) == 1
    assert held(tmp_path) == before


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("halves", "semantics.precision: 'x' of graph 'small' is float64"),
        ("rate", "hyper: lr: expected a finite number >= 0, got nan"),
        ("scheduler", "hyper: lr: expected a finite number >= 0, got nan"),
        ("scale", "semantics.precision: 'x' of graph 'small' is float64"),
    ],
)
def test_what_is_refused_between_steps_changes_nothing(tmp_path: Path, what: str, expected: str) -> None:
    saved(tmp_path)
    before = held(tmp_path)
    status, said = ask(tmp_path, what)
    assert status == 2, said
    assert expected in said
    assert held(tmp_path) == before


def test_a_loader_that_ends_early_on_one_rank_ends_all_with_the_last_step_kept(tmp_path: Path) -> None:
    saved(tmp_path)
    status, said = ask(tmp_path, "loader")
    assert status == 1, said
    assert "rank 1" in said
    assert re.search(r"trainer\.(step 5|parameters)", said), said  # whichever of the two is told of first
    folder, passed = find(tmp_path)
    assert (read_manifest(folder).step, passed) == (STEPS + 3, [])

    def body(world: World) -> list[float]:
        with mp.Trainer.resume(tmp_path, network(), world=world) as trainer:
            return [trainer.step(*batch) for batch in batches(16)]

    losses = run_on_worlds(local_worlds(2), body)
    assert losses[0] == losses[1]
    assert all(torch.isfinite(torch.tensor(losses[0])))
    with pytest.raises(RequestError, match="no whole checkpoint there"):
        find(tmp_path / "elsewhere")
