"""Devices and the processors that drive them: streams, events, memory budgets.

May import ``process`` and ``control``. Start with ``device``, what every device completes; ``registry`` has all by
name, ``null_device`` is a GPU without hardware.
"""

from __future__ import annotations
