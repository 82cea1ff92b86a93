"""Orders of pipelines: which stage does what with which micro-batch, in which turn.

Pure lists and their laws; may import nothing but errors. Start with ``pipeline_order``, the value, and ``named_order``,
the table of all that have a name.
"""

from __future__ import annotations
