"""Compiled functions: how they are declared, where their code is kept, and what of numba is no public interface.

Start with ``compiled``.
"""

from __future__ import annotations
