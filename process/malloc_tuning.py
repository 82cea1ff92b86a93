"""Tuning of malloc, the C library's heap: what bodies free in one step is kept, for the next takes it again.

glibc gives the system back what lies free at the top of the heap, and maps large blocks for themselves. Both are zero
pages when they are next asked for, so a convolution that takes and frees its scratch in every step has the system clear
all of it each time:

    step            1                  2                  3
    by default      map, clear, unmap  map, clear, unmap  map, clear, unmap
    kept            map, clear         -                  -
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from maniple.process import environment

__all__: list[str] = []

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Names of settings, from glibc's malloc.h."""
KEPT_BYTES = 1 << 30
"""Free bytes at the top of the heap above which they are given back."""
GIVEN_BYTES = 1 << 17
"""The same where nothing is to be kept: glibc's own."""
MAPPED_BYTES = 1 << 25
"""The size from which blocks are mapped alone: as large as glibc itself lets it grow. With larger ones on the heap,
too, a step of VGG-16 took 7 % longer."""


def give_back() -> bool:
    """Have what is free on the heap given back to the system, once; says whether there was any."""
    return platform.libc_ver()[0] == "glibc" and bool(ctypes.CDLL(None).malloc_trim(0))


@contextmanager
def giving_back() -> Iterator[None]:
    """A stretch of work whose freed memory goes back to the system at once: nothing like it will run again.

    It is of this process as a whole; what other threads free meanwhile goes back, too, and is cleared once more.
    """
    kept = keep_freed()
    if kept:
        ctypes.CDLL(None).mallopt(TRIM_THRESHOLD, GIVEN_BYTES)
    try:
        yield
    finally:
        if kept:
            ctypes.CDLL(None).mallopt(TRIM_THRESHOLD, KEPT_BYTES)


@cache
def keep_freed() -> bool:
    """Have this process keep what it frees; says whether its C library and its user let it.

    A user who has set the heap (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_, GLIBC_TUNABLES) has the last word.
    """
    if platform.libc_ver()[0] != "glibc" or environment.sets_heap():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(MMAP_THRESHOLD, MAPPED_BYTES) and mallopt(TRIM_THRESHOLD, KEPT_BYTES))
