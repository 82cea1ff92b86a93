"""Log folders: the newest stay, and so does whatever a launcher did not make."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from maniple.runtime.cluster.log_folder import KEPT_RUNS, forget_old_runs, make_log_folder


@pytest.fixture
def ended() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def made(base: Path, second: int, process: int, *files: str) -> Path:
    folder = base / f"20261123-0637{second:02d}-{process}-abc_{second}"
    folder.mkdir()
    for name in files or ("rank-0.log", "rank-1.log"):
        (folder / name).write_text("said")
    return folder


def test_the_newest_runs_keep_their_logs(tmp_path: Path, ended: int) -> None:
    folders = [made(tmp_path, second, ended) for second in range(5)]
    forget_old_runs(tmp_path, 2)
    assert sorted(tmp_path.iterdir()) == folders[3:]
    assert [(folder / "rank-1.log").read_text() for folder in folders[3:]] == ["said"] * 2
    forget_old_runs(tmp_path, 2)
    assert sorted(tmp_path.iterdir()) == folders[3:]


def test_a_run_that_goes_on_keeps_its_logs_however_old(tmp_path: Path, ended: int) -> None:
    running, gone = made(tmp_path, 0, os.getpid()), made(tmp_path, 1, ended)
    forget_old_runs(tmp_path, 0)
    assert [*tmp_path.iterdir()] == [running]
    assert not gone.exists()


def test_what_no_launcher_made_stays(tmp_path: Path, ended: int) -> None:
    (tmp_path / "notes").mkdir()
    kept = made(tmp_path, 0, ended, "rank-0.log", "results.json")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "rank-0.log").write_text("said")
    link = tmp_path / f"20261123-063700-{ended}-link"
    link.symlink_to(elsewhere)
    forget_old_runs(tmp_path, 0)
    assert (kept / "results.json").exists()
    assert (elsewhere / "rank-0.log").exists()
    assert link.is_symlink()
    assert (tmp_path / "notes").exists()


def test_a_launch_makes_its_folder_after_that(tmp_path: Path, ended: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    first = make_log_folder(None)
    old = [made(first.parent, second, ended) for second in range(KEPT_RUNS + 3)]
    second = make_log_folder(None)
    assert first.exists()  # of this process, which runs
    assert second.exists()
    assert [folder.exists() for folder in old] == [False] * 3 + [True] * KEPT_RUNS
