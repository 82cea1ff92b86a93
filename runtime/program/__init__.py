"""Programs as their author states them: tasks, regions, launches, futures, and the mappers that place them.

May import ``schedule``, ``machine`` and ``storage``. Start with ``task`` and ``handle``; ``mapper`` has the questions.
"""

from __future__ import annotations
