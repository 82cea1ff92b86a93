"""Clocks: what gives seconds that only grow; whatever has a rule of time is given one, so that a test can be it."""

from __future__ import annotations

from collections.abc import Callable

__all__: list[str] = []

Clock = Callable[[], float]
"""Seconds from any beginning; by default `time.monotonic`."""
