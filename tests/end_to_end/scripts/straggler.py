"""A program of which one rank sleeps and never joins: `straggler.py RANK PIDS`, where PIDS is a folder."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from maniple.process import environment
from maniple.runtime.control import world

launch = environment.read()
if launch is None:
    sys.exit("start it with maniple run")
(Path(sys.argv[2]) / str(os.getpid())).touch()
if launch.rank == int(sys.argv[1]):
    threading.Event().wait(60)
world.current()
