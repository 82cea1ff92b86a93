"""Huge pages: memory of the host that a program takes in pieces of 2 MiB, where the system lets it ask for them.

The first write to a page has the system find one and clear it, and the processor knows the places of few pages at once.
Of 100 MiB that is 25,600 interruptions and entries by pages of 4 KiB, and 50 by huge ones.
"""

from __future__ import annotations

import mmap

__all__: list[str] = []

PAGE = 1 << 21
"""Bytes of a huge page."""


def take(size: int) -> mmap.mmap | None:
    """Give bytes that nobody has written to, as far as they fill huge pages on such; None where they fill none.

    What does not fill one is on small pages, so no more is taken than was asked for. They go when nobody refers to
    them.

    Args:
        size: how many.
    """
    whole = size // PAGE * PAGE
    if not whole or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    # The system lays what fills huge pages where one begins: it maps as many as are begun, and gives those written to.
    taken = mmap.mmap(-1, -(-size // PAGE) * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        taken.madvise(mmap.MADV_HUGEPAGE, 0, whole)
    except OSError:
        return None  # a system without them
    return taken
