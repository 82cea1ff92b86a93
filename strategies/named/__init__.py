"""Strategies that need no search.

May import ``interface``.
"""

from __future__ import annotations
