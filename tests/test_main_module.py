"""``python -m maniple`` is the command line."""

from __future__ import annotations

import subprocess
import sys


def test_the_package_is_run_as_its_command_line_is() -> None:
    told = subprocess.run([sys.executable, "-m", "maniple", "--help"], capture_output=True, text=True, check=True)
    assert "Usage: " in told.stdout
    assert "search" in told.stdout
