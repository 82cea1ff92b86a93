"""Devices and the processors that drive them: streams, events, memory budgets.

May import ``process``. Start with ``device``; ``null_device`` is a GPU without hardware.
"""

from __future__ import annotations
