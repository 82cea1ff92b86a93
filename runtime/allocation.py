"""Allocations: what torch's allocator on the host gives and takes back while something runs on this thread.

torch has no statistic of its host allocator. `torch.profiler` hears of every allocation, but there is one such profiler
in a process: two threads that use it at once end the process, and a program that profiles itself has it already. The
profiler before it is each thread's own and hears the same. What it says in order is private to torch, and used here
alone.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch.autograd.profiler_legacy import profile

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []


class Taken(NamedTuple):
    """What some work took of a memory.

    Args:
        kept: bytes that it had not given back when it ended.
        peak: bytes that it had at once, at most.
    """

    kept: int
    peak: int


def taken_on_host(work: Callable[[], object]) -> Taken:
    """Run something, and say what it took.

        allocates 6, frees 6, allocates 4 and 1, frees 1:   had 6, 0, 4, 5, 4   kept 4, peak 6

    Threads that torch starts for one operation are not heard, nor are memories that libraries keep to themselves.

    Args:
        work: what to run; what it raises is raised.
    """
    heard: Any = profile(profile_memory=True)  # type: ignore[no-untyped-call]
    heard.__enter__()
    try:
        work()
    finally:
        # As its __exit__ does, which then drops the order.
        records = cast("Any", torch.autograd)._disable_profiler_legacy()  # noqa: SLF001
    sizes = [record.cpu_memory_usage() for thread in records for record in thread if record.kind() == "memory_alloc"]
    had = list(accumulate(sizes, initial=0))
    return Taken(had[-1], max(had))
