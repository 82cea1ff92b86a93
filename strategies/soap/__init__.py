"""Searches over the Sample-Operator-Attribute-Parameter space, by MCMC and otherwise, on simulated step times.

May import ``optcnn``, ``bound``, ``search`` and ``simulation``. Start with ``soap``.
"""
