"""The memory-aware mapper: every point where most of what it reads is, as far as memories have room."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from maniple.mappers.whole_launch import WholeLaunchMapper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maniple.runtime.program.mapper import LaunchView

__all__ = ["MemoryAwareMapper"]


@final
class MemoryAwareMapper(WholeLaunchMapper):
    """Sends work to data.

    A point goes to the memory where most of the bytes that it reads are valid, among those that have room for the rest
    of what it uses; ties go to the memory that was given fewer points of this launch, then to the lowest. Room is what
    the machine says less what this mapper has sent there for as long as the region is used. Where nothing has room the
    memory with the most room is taken, and running out of memory is told by the runtime. In a memory points are dealt
    out to its processors.

    Point 0 reads 4 bytes of memory 1; points 1 and 2 read nothing yet:

        point   0   1   2
        memory  1   0   0
    """

    def __init__(self) -> None:
        super().__init__()
        self._sent: dict[tuple[int, int], int] = {}

    def place(self, launch: LaunchView) -> Sequence[int]:
        """Choose memories, then processors there."""
        machine = launch.machine
        owned = {memory.id: machine.processors_of(memory.id) for memory in machine.memories}
        memories = [memory for memory in machine.memories if owned[memory.id]]
        room = {memory.id: memory.capacity_bytes for memory in memories}
        for (_, memory), size in self._sent.items():
            room[memory] -= size
        given = dict.fromkeys(room, 0)
        chosen = []
        for index in range(len(launch.colors)):
            held = {m: sum(use.resident_bytes(index, m) for use in launch.uses) for m in room}
            needed = sum(use.bytes(index) for use in launch.uses)
            fitting = [m for m in room if needed - held[m] <= room[m]] or [max(room, key=lambda m: (room[m], -m))]
            memory = min(fitting, key=lambda m: (-held[m], given[m], m))
            chosen.append(owned[memory][given[memory] % len(owned[memory])])
            given[memory] += 1
            room[memory] -= needed - held[memory]
            for use in launch.uses:
                key = (use.requirement.region.id, memory)
                whole = use.requirement.region.size_bytes
                grown = self._sent.get(key, 0) + use.bytes(index) - use.resident_bytes(index, memory)
                self._sent[key] = min(whole, grown)
        return chosen
