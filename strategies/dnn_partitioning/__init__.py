"""The placements of dnn-partitioning: least largest load, least latency.

May import ``pipeline``.
"""

from __future__ import annotations
