"""Operators that change shape or layout, and opaque ones.

May import ``operator`` and ``rules``.
"""

from __future__ import annotations
