"""Restarts: a run whose ranks or hosts failed begins again, and what that costs.

May import ``cluster``'s modules, ``transports`` and ``process``. Start with ``attempt``; ``course`` is what the
coordinator notes of each.
"""

from __future__ import annotations
