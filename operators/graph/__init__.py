"""Graphs: the operators and tensors of one training step; how they are written and read.

May import ``library`` and what lies below. Start with ``graph``; the files ``*_methods`` are what its author calls.
"""

from __future__ import annotations
