"""Operators that draw: dropout and random tensors, by counter.

May import ``operator`` and ``rules``.
"""

from __future__ import annotations
