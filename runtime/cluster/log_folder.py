"""The folders of runs' log files: the newest runs keep theirs.

Each run that is not told where to log has a folder named by when it began and by its launcher:

    /tmp/maniple-1000 | 20261123-063702-20620-4wer4r9d | rank-0.log, rank-1.log
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__: list[str] = []

KEPT_RUNS = 20
"""How many runs that have ended keep their log files."""
_NAME = re.compile(r"\d{8}-\d{6}-(\d+)-\w+")


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
