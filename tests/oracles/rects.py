"""Boxes of an array as rectangles."""

from __future__ import annotations

from maniple.operators.rules.bounds import Bounds
from maniple.regions.rectangle import Rect


def rects_of(bounds: Bounds) -> tuple[Rect, ...]:
    """The boxes as rectangles."""
    lows, highs = bounds[:, :, 0].tolist(), bounds[:, :, 1].tolist()
    return tuple([Rect(tuple(low), tuple(high)) for low, high in zip(lows, highs, strict=True)])
