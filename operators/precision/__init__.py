"""Mixed precision: operators that read halves or give them, and which operators do.

May import ``operator`` and ``rules``. Start with ``mixed_precision``; ``lowering.precision`` rewrites a graph with it.
"""

from __future__ import annotations
