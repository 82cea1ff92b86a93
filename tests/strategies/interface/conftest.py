"""Makes the modules of this folder that hold no tests importable, here and by the processes of a search."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
