"""Frontiers: every best trade of memory and time, as sets of points under union and product.

May import ``elimination``. Start with ``algebra``; ``frontiers`` makes them a semiring for the engine.
"""
