"""OptCNN: exact dynamic programming over per-operator choices under an additive cost.

May import ``search``, ``simulation``, ``named`` and ``interface``. Start with ``optcnn``.
"""
