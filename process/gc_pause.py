"""Pauses of Python's collector: it is kept from running where it would find nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__: list[str] = []


@contextmanager
def pause_gc() -> Iterator[None]:
    """A stretch of work whose objects outlive it: a collector that runs meanwhile looks at them in vain.

    An export makes a million of them, a lowering as many: a tenth of an import's time and a fifth of a lowering's went
    into collections that freed next to nothing.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
