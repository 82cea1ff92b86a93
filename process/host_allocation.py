"""Allocations: what torch's allocator on the host gives and takes back while something runs on this thread.

torch has no statistic of its host allocator. `torch.profiler` hears of every allocation, but there is one such profiler
in a process: two threads that use it at once end the process, and a program that profiles itself has it already. The
profiler before it is each thread's own and hears the same. What it says in order is private to torch;
where a release has none of it, nothing is measured.

A thread has one profiler, of whatever kind, at a time. Measuring must change no result, so it gives way:

    the thread is profiled already    nothing is heard
    the work begins a profiler        what is heard ends just before that
"""

from __future__ import annotations

import sys
from itertools import accumulate
from typing import TYPE_CHECKING

from maniple.process import torch_internals
from maniple.process.taken_memory import Taken

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__: list[str] = []


class _Listening:
    """The profiler of this thread while some work runs, until the work begins one of its own."""

    def __enter__(self) -> None:
        self.heard = True
        self.sizes: list[int] = []
        torch_internals.begin_profile()
        sys.setprofile(self._give_way)  # this thread's calls alone

    def __exit__(self, *_: object) -> None:
        # Work that profiles its calls has set a function of its own.
        if sys.getprofile() == self._give_way:
            sys.setprofile(None)
        if self.heard:
            self._end()

    def _give_way(self, frame: FrameType, event: str, called: object) -> None:
        """End if a profiler is about to begin; Python calls this around each of its calls."""
        del frame
        if self.heard and event == "c_call" and torch_internals.begins_profile(called):
            self._end()
            self.heard = False

    def _end(self) -> None:
        records = [record for thread in torch_internals.end_profile() for record in thread]
        self.sizes = [record.cpu_memory_usage() for record in records if record.kind() == "memory_alloc"]


def watch_host_run(work: Callable[[], object]) -> Taken | None:
    """Run something, and say what it took.

        allocates 6, frees 6, allocates 4 and 1, frees 1:   had 6, 0, 4, 5, 4   kept 4, peak 6

    Threads that torch starts for one operation are not heard, nor are memories that libraries keep to themselves.

    Args:
        work: what to run; what it raises is raised.

    Returns:
        What it took; None where a profiler besides this module's was under way, of torch or of Python's calls.
    """
    if not torch_internals.HEARS or torch_internals.is_profiled() or sys.getprofile() is not None:
        work()
        return None
    listening = _Listening()
    with listening:
        work()
    had = list(accumulate(listening.sizes, initial=0))
    # What was there before and is let go of meanwhile was not taken by the work.
    return Taken(max(0, had[-1]), max(had)) if listening.heard else None
