"""Memory of a schedule: what lives from when to when, and where it lies.

May import the rest of ``schedule`` and what lies below. Start with ``lifetime``, then ``memory_plan``.
"""
