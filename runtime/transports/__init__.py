"""Transports: how bytes reach another rank, and how either side knows whom it talks to.

May import ``process``. Start with ``transport``, the interface, and ``message``, all that is ever said.
"""

from __future__ import annotations
