"""The exhaustive search of the published space: branch and bound on simulated step times.

May import ``optcnn``, ``simulation`` and ``interface``. Start with ``exhaustive``.
"""
