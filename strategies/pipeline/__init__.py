"""Pipelines as graphs of costs: their machines, their ideals, what stages take.

May import ``interface``, ``simulation`` and ``bound``. Start with ``problem``.
"""

from __future__ import annotations
