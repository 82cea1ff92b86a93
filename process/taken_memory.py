"""Taken memory: what some work took of one, which whoever plans knows too, and without torch."""

from __future__ import annotations

from typing import NamedTuple

__all__: list[str] = []


class Taken(NamedTuple):
    """What some work took of a memory.

    Args:
        kept: bytes that it had not given back when it ended.
        peak: bytes that it had at once, at most.
        shared: bytes that it had besides of memory with which other work takes turns.
    """

    kept: int
    peak: int
    shared: int = 0
