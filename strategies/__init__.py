"""Strategies: plug-ins that turn a graph and a machine into a plan.

What a strategy of another package needs is in ``mp.plugins``; the modules that it comes from may change. Start with
``interface.strategy``.
"""

from __future__ import annotations
