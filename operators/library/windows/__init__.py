"""Operators with windows: convolutions and pools.

May import ``operator`` and ``rules``.
"""

from __future__ import annotations
