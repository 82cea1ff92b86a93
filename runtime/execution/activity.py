"""Activity: what the threads of a rank's runtime do, as its headway counts it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from maniple.runtime.devices.processor import CpuProcessor

if TYPE_CHECKING:
    from maniple.runtime.execution.resources import Resources

__all__: list[str] = []


def attend(resources: Resources) -> None:
    """Have a rank's headway count what its threads do, for as long as there are any.

    What gets on is work that processors took, rows that their lanes did, and bytes that went to others. What works is a
    CPU's thread that is in a body and in no wait; the thread of a GPU only submits, so it says nothing.
    """
    known = weakref.ref(resources)

    def count() -> int:
        found = known()
        if found is None:
            return 0
        processors = list(found.processors.values())
        ways = (found.world.transport, found.world.shared)
        moved = sum(way.total() for way in ways if way is not None)
        lanes = found.progress.steps([processor.id for processor in processors])
        return moved + lanes + sum(processor.begun for processor in processors)

    def working() -> int:
        found = known()
        if found is None:
            return 0
        busy = sum(one.busy for one in list(found.processors.values()) if isinstance(one, CpuProcessor))
        return busy - found.progress.blocked

    resources.world.headway.count(count, working)
