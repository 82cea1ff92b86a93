"""The ssh launcher: one remote shell per host, each of which becomes that host's agent."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Self, final

from maniple.process.error import RequestError
from maniple.runtime.cluster.host_launcher import AgentCommand, HostCommand, HostLauncher
from maniple.runtime.cluster.hosts.host_list import ListedHost, check_slots, read_hostfile, split_hosts

if TYPE_CHECKING:
    from collections.abc import Collection

    from maniple.runtime.cluster.launcher import LaunchRequest

__all__: list[str] = []


@final
class SshLauncher(HostLauncher):
    """Node n is the n-th host of its argument; users, keys and ports are in ~/.ssh/config.

    No password is asked for, and a host whose key is not known is refused: both are ssh's to be told of beforehand.

    Args:
        argument: hosts, `alpha,beta`, or `@` and a file of hosts.

    Raises:
        RequestError: it names none.
    """

    def __init__(self, argument: str = "") -> None:
        super().__init__(argument)
        if not argument:
            raise RequestError("launcher ssh: expected hosts, got none; write --hosts alpha,beta or --hostfile FILE")
        self._option = "--hostfile" if argument.startswith("@") else "--hosts"
        self.listed = read_hostfile(Path(argument[1:])) if argument.startswith("@") else split_hosts(argument)

    def hosts(self, request: LaunchRequest) -> tuple[str, ...]:
        """See `HostLauncher.hosts`."""
        return tuple(host.name for host in self._chosen(request))

    def count(self) -> int:
        """See `HostLauncher.count`."""
        return len(self.listed)

    def without(self, hosts: Collection[str]) -> Self:
        """See `HostLauncher.without`."""
        left = copy(self)
        left.listed = [host for host in self.listed if host.name not in hosts]
        return left

    def towards(self, request: LaunchRequest) -> str:
        """See `HostLauncher.towards`."""
        return self._chosen(request)[-1].name.rpartition("@")[2]

    def commands(self, request: LaunchRequest, agent: AgentCommand) -> list[HostCommand]:
        """See `HostLauncher.commands`."""
        return [
            HostCommand(("ssh", "-o", "BatchMode=yes", "--", host, agent.shell(node)), (node,))
            for node, host in enumerate(self.hosts(request))
        ]

    def _chosen(self, request: LaunchRequest) -> list[ListedHost]:
        return check_slots(self.listed, request.nodes, request.ranks_per_node, self._option)
