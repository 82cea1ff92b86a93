"""Timelines: what happened when, and what is read off it.

May import ``schedule``. Start with ``timeline``; ``execution.recorder`` fills one, ``session.recording`` collects it.
"""

from __future__ import annotations
