"""The hosts that are left of a run: what begins again goes without those that were lost, on spare ones or on fewer.

--hosts alpha,beta,gamma --nnodes 2 --min-nodes 1

lost          nodes
===========   ============
none          alpha, beta
beta          alpha, gamma
beta, gamma   alpha
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, final

from maniple.runtime.cluster.restarts.attempt import say

if TYPE_CHECKING:
    from collections.abc import Collection

    from maniple.runtime.cluster.host_launcher import HostLauncher
    from maniple.runtime.cluster.launcher import LaunchRequest

__all__: list[str] = []


@final
class HostsLeft:
    """What is to be started next, on which hosts.

    Args:
        request: what was asked for.
        launcher: what starts agents, and knows the hosts; None where users start them, and whoever comes is there.
    """

    def __init__(self, request: LaunchRequest, launcher: HostLauncher | None) -> None:
        self.request = request
        self.launcher = launcher
        self._nodes = request.nodes

    def lose(self, nodes: Collection[int]) -> bool:
        """Do without the hosts of some nodes.

        Args:
            nodes: as they were numbered in the attempt that ended.

        Returns:
            Whether enough hosts are left; else the user has been told.
        """
        if self.launcher is None or not nodes:
            return True
        names = self.launcher.hosts(self.request)
        lost = {names[node] for node in nodes}
        self.launcher = self.launcher.without(lost)
        left = min(self._nodes, self.launcher.count())
        least = self._nodes if self.request.min_nodes is None else self.request.min_nodes
        if left < least:
            say(
                f"the run does not begin again: without {', '.join(sorted(lost))} {left} hosts are left, and it needs "
                f"{least}; name spare hosts, or let it go on with fewer by --min-nodes"
            )
            return False
        self.request = replace(self.request, nodes=left)
        return True
