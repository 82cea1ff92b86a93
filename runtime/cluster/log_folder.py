"""The folders of runs' log files: what lies in one, and that the newest runs keep theirs.

Each run that is not told where to log has a folder named by when it began and by its launcher:

    /tmp/maniple-1000 | 20261123-063702-20620-4wer4r9d | rank-0.log, rank-1.log
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from maniple.process.error import RequestError, RunError

__all__: list[str] = []

KEPT_RUNS = 20
"""How many runs that have ended keep their log files."""
_NAME = re.compile(r"\d{8}-\d{6}-(\d+)-\w+")
STACKS = "maniple: the run ends, and this rank was asked where its threads are; what follows is no crash:"
"""The line that an agent writes to the log of a rank before that writes its stacks there."""
_TAIL_LINES = 20
_TAIL_BYTES = 1 << 16


def make_log_folder(chosen: Path | None) -> Path:
    """Make the folder of a run's log files: fresh, or a chosen one without those of an earlier run.

    Raises:
        RequestError: the chosen one cannot be written.
        RunError: no fresh one can be made.
    """
    if chosen is not None:
        try:
            chosen.mkdir(parents=True, exist_ok=True)
            for old in (*chosen.glob("rank-*.log"), *chosen.glob(reports_file(chosen).name)):
                old.unlink()
        except OSError as error:
            raise RequestError(f"--log-dir {chosen}: {error.strerror or error}; choose another folder") from error
        return chosen
    base = Path(tempfile.gettempdir()) / f"maniple-{os.getuid()}"
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        status = base.lstat()
        if status.st_uid != os.getuid() or not base.is_dir() or base.is_symlink():
            raise RunError(f"{base} belongs to somebody else; choose a folder for log files with --log-dir")
        forget_old_runs(base)
        return Path(tempfile.mkdtemp(prefix=f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-", dir=base))
    except OSError as error:
        raise RunError(f"{base}: {error.strerror or error}; choose a folder for log files with --log-dir") from error


def log_file(folder: Path, rank: int) -> Path:
    """Name the log file of a rank."""
    return folder / f"rank-{rank}.log"


def reports_file(folder: Path) -> Path:
    """Name the file of what trainers report."""
    return folder / "reports.txt"


def read_tail(log: Path) -> list[str]:
    """Give the last lines of a log, indented; none where it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    if STACKS in lines:  # what the rank said itself, and where its program was: that thread is written last
        place = lines.index(STACKS)
        lines = [*lines[max(0, place - _TAIL_LINES // 2) : place + 1], *lines[place + 1 :][-_TAIL_LINES // 2 :]]
        return [f"  {line}" for line in lines]
    return [f"  {line}" for line in lines[-_TAIL_LINES:]]


def forget_old_runs(base: Path, kept: int = KEPT_RUNS) -> None:
    """Remove the log files of runs that have ended, but for the newest; what a launcher did not make stays.

    Args:
        base: the folder of this user's runs.
        kept: how many keep theirs.
    """
    ended = [folder for folder in base.iterdir() if (name := _NAME.fullmatch(folder.name)) and not _runs(int(name[1]))]
    for folder in sorted(ended)[: max(0, len(ended) - kept)]:
        if folder.is_symlink() or not folder.is_dir():
            continue
        # Another launcher may be at it, too; and a folder that holds more than a run's files is somebody's.
        with suppress(OSError):
            for log in folder.glob("rank-*.log"):
                log.unlink()
            folder.rmdir()


def _runs(process: int) -> bool:
    """Say whether there is a process of a number: at worst another has it by now, and a folder stays for longer."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
