"""Profilers: what tasks took, for mappers that asked."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING

from maniple.runtime.program.mapper import TaskProfile
from maniple.runtime.transports import record

if TYPE_CHECKING:
    from maniple.runtime.control.world import World

__all__: list[str] = []


class Profiler:
    """Measurements of this rank since the last snapshot; `asked` says whether any launch was to be measured."""

    def __init__(self) -> None:
        self.asked = False
        self._found: dict[tuple[str, int], list[int]] = {}

    def measure(self, call: Callable[[], object], name: str, processor: int) -> Callable[[], None]:
        """Wrap a task's body so that it is measured; each processor has entries of its own, so no lock is needed."""
        told = self.make_listener(name, processor)

        def run() -> None:
            begin = perf_counter_ns()
            call()
            told(perf_counter_ns() - begin)

        return run

    def make_listener(self, name: str, processor: int) -> Callable[[int], None]:
        """Give what is told for how many nanoseconds a task ran; by one thread at a time for each processor."""
        self.asked = True
        entry = self._found.setdefault((name, processor), [0, 0])

        def tell(spent_ns: int) -> None:
            entry[0] += 1
            entry[1] += spent_ns

        return tell

    def exchange(self, world: World) -> tuple[TaskProfile, ...]:
        """Give every rank the measurements of all, by name and processor, and start anew; nothing may be under way."""
        mine = [(name, processor, *entry) for (name, processor), entry in sorted(self._found.items()) if entry[0]]
        for entry in self._found.values():
            entry[:] = [0, 0]
        rows = []
        for part in record.parts(world.control.gather(record.pack(mine)), "task times"):
            for name, *numbers in (row.items(4) for row in part.items()):
                processor, count, spent = (number.integer() for number in numbers)
                rows.append(TaskProfile(name.string(), processor, count, spent * 1e-9))
        return tuple(sorted(rows, key=lambda row: (row.name, row.processor)))
