"""What every search shares: what fits, what is measured before it, which plan is taken, and why.

May import ``simulation``, ``named`` and ``interface``.
"""

from __future__ import annotations
