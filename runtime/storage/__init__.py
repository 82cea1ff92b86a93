"""Storage: the instances of a rank's memories, and the kernels that copy, pack and fold them.

May import ``devices``, ``transports`` and ``schedule``. Start with ``memory``.
"""

from __future__ import annotations
