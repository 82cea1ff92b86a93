"""Adoption: ranks that torchrun started, watched and ended as if our launcher had.

May import ``cluster`` and what that may. Start with ``companion``, which is a program of its own; ``door`` is where
ranks come to, ``adopted_process`` stands for each.
"""

from __future__ import annotations
