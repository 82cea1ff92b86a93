"""Lanes: the steps of one processor's share of a schedule, bound, and taken one by one.

May import ``storage``, ``schedule`` and ``program``. Start with ``lane_program``; ``lane_kernel`` is its compiled loop,
``progress`` how one lane waits for another.
"""

from __future__ import annotations
