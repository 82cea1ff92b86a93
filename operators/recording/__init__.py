"""Recordings: what torch calls on a tile, and the function that makes these calls again.

May import nothing of the other rooms. Start with ``tape``.
"""

from __future__ import annotations
