"""Schedules: launches and rows as columns, what they cost, when they run and where their instances lie.

Pure values and functions. May import ``machine``. Start with ``schedule``.
"""

from __future__ import annotations
