"""Strategies whose pipelines have no flush: they must be asked which versions of weights are read.

May import ``segmentation`` and what it may; nothing imports it. Start with ``flow_plan``.
"""
