"""Timing: when the rows of a simulated step run; from scratch, and after a change.

May import ``lowering``. Start with ``full``.
"""

from __future__ import annotations
