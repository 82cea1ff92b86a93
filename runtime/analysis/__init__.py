"""Dependence analysis: from what launches use of regions to movements, folds and waits.

Pure. May import ``schedule`` and ``machine``. Start with ``dependence``, the analysis of one region;
``schedule_builder`` puts those of all regions together.
"""

from __future__ import annotations
