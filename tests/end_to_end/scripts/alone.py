"""A program that never joins, and leaves a child behind that would outlive it: `alone.py STATUS PIDS`."""

# ruff: noqa: T201 - what it prints is what the test looks at

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
for pid in (os.getpid(), child.pid):
    (Path(sys.argv[2]) / str(pid)).touch()
print("out of", os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"], os.environ["MANIPLE_NODE"])
print("err of", os.environ["RANK"], file=sys.stderr)
sys.exit(int(sys.argv[1]))
