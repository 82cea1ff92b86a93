"""Launches at the homes of weights, as simulations have them.

``placed_program`` imports it, and so do searches that price updates. Start with ``home_launch``.
"""

from __future__ import annotations

__all__: list[str] = []
