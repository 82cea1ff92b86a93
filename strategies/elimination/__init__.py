"""Elimination: what a graph of operators costs at best, by taking them out one by one, over any semiring.

``variable_elimination`` is the engine, ``min_plus`` the semiring of least sums. Imports no other room.
"""
