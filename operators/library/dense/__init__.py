"""Dense layers: linear, embedding, attention, recurrent.

May import ``operator`` and ``rules``.
"""

from __future__ import annotations
