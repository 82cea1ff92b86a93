"""A barrier: all ranks tell each other one bit, and go on once everybody's is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from maniple.runtime.lanes.progress import BARRIERS

if TYPE_CHECKING:
    from maniple.runtime.control.world import World
    from maniple.runtime.lanes.progress import Progress

__all__: list[str] = []


@final
class Barrier:
    """Where the ranks of a world wait for each other.

    Ranks of one host do so in shared memory. Barrier k is twice k and the bit, in one of two counters of each rank's
    board that take turns. Two are enough: a rank overwrites k at k + 2, which it does not come to before all have told
    k + 1, and who told that has seen all of k.

        rank 0    tells 2k | 0    sees 2k | 0, 2k | 1    somebody said yes
        rank 1    tells 2k | 1    sees 2k | 0, 2k | 1    somebody said yes

    Ranks of several hosts do so by way of the launcher.

    Args:
        world: this rank.
        progress: its counters.
    """

    def __init__(self, world: World, progress: Progress) -> None:
        self._world = world
        self._progress = progress
        shared = world.shared
        self._shared = shared if shared is not None and len(shared.ranks) == world.size else None
        self._number = 0

    def anybody(self, *, says: bool) -> bool:
        """Tell a bit, wait for everybody's, and give whether any was set; all ranks get the same.

        Raises:
            RunError: the run was stopped or has failed.
        """
        world = self._world
        if self._shared is None:
            return world.control.greatest(b"!" if says else b" ") != b" "
        self._number += 1
        progress, slot = self._progress, BARRIERS + self._number % 2
        progress.tell(slot, 2 * self._number + says)
        with world.headway.waiting():
            told = [progress.hear(rank, slot, 2 * self._number) for rank in sorted(self._shared.ranks)]
        return any(word % 2 for word in told)
