"""Segmentation: a graph of costs cut into pipeline stages, exactly where its ideals can be enumerated."""
