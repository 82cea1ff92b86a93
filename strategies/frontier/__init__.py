"""Frontiers: every best trade of memory and time by an additive model, as sets of points under union and product.

May import ``elimination``, ``optcnn``, ``search``, ``simulation`` and ``interface``. Start with ``pareto``; ``algebra``
says what frontiers are, ``frontiers`` makes them a semiring for the engine.
"""
