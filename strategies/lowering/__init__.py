"""The compiled lowering: validity, dependences and movements of regions, as tables and without an object per task.

Imports nothing of ``strategies``. Start with ``dependence``.
"""

from __future__ import annotations
