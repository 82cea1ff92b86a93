"""The benchmarks' modules, which are no part of the package, ranks of threads and forked programs, made importable."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "laws"))  # thread_ranks
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "end_to_end"))  # forking
