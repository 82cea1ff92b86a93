"""Rewriting: graphs of other nodes that compute the same.

May import graphs and the library; imports and lowering use it. Start with ``replacement``.
"""

from __future__ import annotations

__all__: list[str] = []
