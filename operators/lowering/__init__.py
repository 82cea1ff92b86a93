"""Lowering: a graph and a plan become the launches of a step.

May import ``plan``, ``graph`` and ``library``. Start with ``expansion``.
"""

from __future__ import annotations
