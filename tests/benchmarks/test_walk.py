"""The walk as a program; what it finds is asserted nowhere but to be there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "walk.py"


@pytest.mark.usefixtures("forked_files")
def test_it_prints_a_line_for_each_walk_and_its_way() -> None:
    ran = subprocess.run([sys.executable, str(SCRIPT), "--way"], capture_output=True, text=True, check=True)
    lines = [line.split() for line in ran.stdout.splitlines()]
    found = {(line[0], line[1]): tuple(map(int, line[2:])) for line in lines[2:6]}
    assert list(found) == [("step", "program's"), ("step", "all"), ("launch", "program's"), ("launch", "all")]
    for name in ("step", "launch"):
        mine, every = found[name, "program's"], found[name, "all"]
        assert all(0 < one <= other for one, other in zip(mine, every, strict=True))
        (way,) = (line for line in lines if line and line[0] == f"{name}:")
        modules = [word for word in way[1:] if word != ">"]
        assert (len(set(modules)), len(modules) - 1) == (mine[0], mine[2])
