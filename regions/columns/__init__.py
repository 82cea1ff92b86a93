"""The rules of regions in compiled form, over columns: validity, dependences and movements without an object per task.

Imports nothing of ``regions`` but what is in this folder. Start with ``dependence``.
"""

from __future__ import annotations
