"""Runs programs one after the other in the processes of one launch, each as `python PROGRAM ARGUMENT...` would.

    series.py FILE          a file of JSON: [[folder, [program, argument, ...]], ...]

Each runs in its folder, which this makes, and what it prints goes there, by rank: `out-0`, `out-1`, ...
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

import maniple as mp


def run(folder: Path, program: str, arguments: list[str]) -> None:
    """Run one program to its end, with all that it launched."""
    folder.mkdir(exist_ok=True)  # another rank of this host may have made it
    os.chdir(folder)
    sys.argv = [program, *arguments]
    with (folder / f"out-{mp.world().rank}").open("w") as out, redirect_stdout(out):
        try:
            runpy.run_path(program, run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise
        mp.fence()


def main(file: str) -> None:
    """Run all of them; one that fails ends the launch."""
    for folder, (program, *arguments) in json.loads(Path(file).read_text(encoding="utf-8")):
        run(Path(folder), program, arguments)


if __name__ == "__main__":
    main(sys.argv[1])
