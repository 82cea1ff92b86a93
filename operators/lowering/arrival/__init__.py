"""Arrival: what of the program's values enters a step, and where.

May import what places tasks, and bodies; ``expansion`` imports it. Start with ``input_parts``.
"""

from __future__ import annotations

__all__: list[str] = []
