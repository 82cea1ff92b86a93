"""Fusion: launches that are one where nothing comes between them.

May import what makes launches; ``expansion`` and the simulator import it. Start with ``fused_launch``.
"""

from __future__ import annotations

__all__: list[str] = []
