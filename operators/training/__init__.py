"""Optimizers: how a gradient changes a weight.

May import ``operator``. Start with ``optimizer``.
"""

from __future__ import annotations
