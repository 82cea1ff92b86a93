"""Runs: starts the ranks of a run through a launcher, watches them, and ends them.

May import ``control``, ``devices``, ``transports``, ``machine`` and ``process``. Start with ``launcher``, what a
launcher completes, and ``run``, which uses one; then ``coordinator``, which decides and has no effects, and
``supervisor``, which carries out what it decides.
"""

from __future__ import annotations
