"""Plans: how every operator of a graph is cut and placed, and what makes that legal.

May import ``graph``. Start with ``plan``.
"""

from __future__ import annotations
