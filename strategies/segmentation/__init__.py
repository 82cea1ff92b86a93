"""Segmentation: a graph of costs cut into pipeline stages, exactly where its ideals can be enumerated.

May import ``pipeline`` and ``dnn_partitioning``. Start with ``segment``.
"""
