"""Hosts: what one must know of the hosts of a run before any of them talks to another.

May import ``transports`` and ``process``. Start with ``interface``: under which address others reach this host; ``key``
is how the secret of a run gets from one to the next.
"""

from __future__ import annotations
