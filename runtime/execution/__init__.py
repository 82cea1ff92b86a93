"""Execution: the runtime of one rank, its replays, its launches as they come, and its failures.

May import every room but ``session`` and ``cluster``. Start with ``rank``.
"""

from __future__ import annotations
