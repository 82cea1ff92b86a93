"""Frontiers: every best trade of memory and time, as sets of points under union and product.

Start with ``algebra``.
"""
