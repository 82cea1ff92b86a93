"""The MPI launcher: one process per host by `mpirun`, each of which becomes that host's agent. No MPI is linked."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Self, final

from maniple.process.error import RequestError
from maniple.runtime.cluster.host_launcher import AgentCommand, HostCommand, HostLauncher
from maniple.runtime.cluster.hosts.host_list import check_slots, read_hostfile, split_hosts

if TYPE_CHECKING:
    from collections.abc import Collection

    from maniple.runtime.cluster.launcher import LaunchRequest

__all__: list[str] = []


@final
class MpiLauncher(HostLauncher):
    """Starts agents by Open MPI's `mpirun`, on the hosts of its argument; the environment says which one a process is.

    Args:
        argument: hosts, `alpha,beta`, or `@` and a file of hosts.

    Raises:
        RequestError: it names none.
    """

    passes_input = False  # Open MPI 4.1 gives it to the first process alone, --stdin all or not

    def __init__(self, argument: str = "") -> None:
        super().__init__(argument)
        if not argument:
            raise RequestError("launcher mpi: expected hosts, got none; write --launcher mpi:alpha,beta or mpi:@FILE")
        self.listed = read_hostfile(Path(argument[1:])) if argument.startswith("@") else split_hosts(argument)

    def hosts(self, request: LaunchRequest) -> tuple[str, ...]:
        """See `HostLauncher.hosts`."""
        chosen = check_slots(self.listed, request.nodes, request.ranks_per_node, f"--launcher mpi:{self.argument}")
        return tuple(host.name for host in chosen)

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
        return self.hosts(request)[-1]

    def commands(self, request: LaunchRequest, agent: AgentCommand) -> list[HostCommand]:
        """See `HostLauncher.commands`; the environment says which host a process is on."""
        exported = [word for name in sorted(agent.variables) for word in ("-x", name)]
        spread = ("-n", str(request.nodes), "--host", ",".join(self.hosts(request)), "--map-by", "node")
        # Else Open MPI keeps each of up to two processes to one core, and with it all ranks that it starts.
        start = ("mpirun", *spread, "--bind-to", "none", "--wdir", agent.folder, *exported)
        return [HostCommand((*start, *agent.reporting()), tuple(range(request.nodes)))]
