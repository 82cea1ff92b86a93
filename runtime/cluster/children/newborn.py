"""Newborns: ranks that a nursery forks, from when they are asked for."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, final

from maniple.runtime.cluster.launcher import RankProcess

if TYPE_CHECKING:
    from maniple.runtime.cluster.children.nursery import Nursery

__all__: list[str] = []

_WITH_NURSERY = frozenset({signal.SIGSTOP, signal.SIGCONT})


@final
class Newborn(RankProcess):
    """A rank of a nursery: once it is forked, a child of this process like any other.

    Until then the nursery stands for it: what ends one ends both, and all others that are not there yet.

    Args:
        nursery: forks it.
        rank: which.
    """

    def __init__(self, nursery: Nursery, rank: int) -> None:
        self._nursery = nursery
        self._rank = rank

    def poll(self) -> int | None:
        """See `RankProcess.poll`."""
        child = self._nursery.find(self._rank)
        return self._nursery.status(self._rank) if child is None else child.poll()

    def terminate(self) -> None:
        """See `RankProcess.terminate`; a nursery has nothing to put in order."""
        self.pass_on(signal.SIGTERM, group=True)

    def kill(self) -> None:
        """See `RankProcess.kill`."""
        self.pass_on(signal.SIGKILL, group=True)

    def wait(self, timeout_s: float) -> bool:
        """See `RankProcess.wait`."""
        if self._nursery.find(self._rank) is None and not self._nursery.wait(timeout_s):
            return False
        child = self._nursery.find(self._rank)
        if child is None:
            return True
        child.kill()  # it may have begun between the last look and the nursery's end
        return child.wait(timeout_s)

    def pass_on(self, number: int, *, group: bool) -> bool:
        """See `RankProcess.pass_on`."""
        child = self._nursery.find(self._rank)
        if child is not None:
            return child.pass_on(number, group=group)
        if number in {signal.SIGTERM, signal.SIGKILL}:
            return self._nursery.end()
        return number in _WITH_NURSERY and self._nursery.pass_on(number)
