"""Losses.

May import ``operator`` and ``rules``.
"""

from __future__ import annotations
