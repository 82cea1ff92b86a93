"""The launcher: starts the ranks of a run, watches them, and ends them.

May import ``control``, ``transports``, ``machine`` and ``process``. Start with ``coordinator``, which decides and has
no effects, and ``supervisor``, which carries out what it decides.
"""

from __future__ import annotations
