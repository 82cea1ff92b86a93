"""A program that says whether it writes to a terminal, and how wide that is."""

# ruff: noqa: T201 - what it prints is what the test looks at

from __future__ import annotations

import os
import sys

if os.environ["RANK"] == "0":
    print("terminal", sys.stdout.isatty(), os.get_terminal_size().columns if sys.stdout.isatty() else 0)
