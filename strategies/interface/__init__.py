"""What a strategy is given and gives: the interface, the space, plans of choices, the registry.

May import ``cost_model``. Start with ``strategy``.
"""

from __future__ import annotations
