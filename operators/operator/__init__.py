"""The interface of operators, and what rules and kernels of the library share.

May import ``rules``. Start with ``operator``.
"""

from __future__ import annotations
