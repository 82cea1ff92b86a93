"""Sessions: a program of launches under way on one rank, its traces and its recordings.

May import every room but ``cluster``. Start with ``session``.
"""

from __future__ import annotations
