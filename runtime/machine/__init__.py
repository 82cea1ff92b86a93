"""Machines as planning sees them: hosts, memories, processors and links; found, named, or read from a file.

May import what lies below: ``devices`` (which say what memory they have), ``control`` (whose ranks a machine has),
``transports``, ``process``. Start with ``machine``.
"""

from __future__ import annotations
