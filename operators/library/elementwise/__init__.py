"""Operators element by element, and torch's own by rule.

May import ``operator`` and ``rules``.
"""

from __future__ import annotations
