"""The Ray launcher: one actor per host in a placement group, each of which has that host's agent as its child."""

from __future__ import annotations

import json
import subprocess
import sys
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, final

from maniple.process.error import RequestError
from maniple.runtime.cluster import parent_death
from maniple.runtime.cluster.host_launcher import AgentCommand, HostCommand, HostLauncher

if TYPE_CHECKING:
    from collections.abc import Collection

    from maniple.runtime.cluster.launcher import LaunchRequest

__all__: list[str] = []

_PROGRAM = (sys.executable, "-m", "maniple.runtime.cluster.launchers.ray_actors")
_ASK_S = 120.0


@final
@dataclass(frozen=True, slots=True)
class RayHost:
    """A node of a Ray cluster.

    Args:
        address: of the node, which is its name, too.
        cpus: cores that Ray gives out there.
        gpus: likewise.
    """

    address: str
    cpus: int
    gpus: int


@final
class RayLauncher(HostLauncher):
    """Starts agents as actors of Ray, on the nodes of a cluster that has this host in it.

    The placement group has a bundle for each host with the cores (`--cores` times processors and ranks, or else all of
    the node's) and GPUs of all its ranks. What the nodes are is asked of Ray, so a dry run asks, too.

    Args:
        argument: where the cluster's head is, `HOST:PORT`; empty for the cluster that runs on this host.

    Raises:
        RequestError: it is the address of a client, whose program would be elsewhere.
    """

    def __init__(self, argument: str = "") -> None:
        super().__init__(argument)
        if "://" in argument:
            raise RequestError(
                f"launcher ray: expected HOST:PORT of the cluster's head, got {argument!r}; start the run on a node of "
                "the cluster, such as by ray job submit -- maniple run --launcher ray SCRIPT"
            )
        self.lost: frozenset[str] = frozenset()
        self.known: tuple[RayHost, ...] | None = None

    def without(self, hosts: Collection[str]) -> Self:
        """See `HostLauncher.without`; Ray is asked anew, since it may have lost or found some, too."""
        left = copy(self)
        left.lost, left.known = self.lost.union(hosts), None
        return left

    def hosts(self, request: LaunchRequest) -> tuple[str, ...]:
        """See `HostLauncher.hosts`."""
        return tuple(host.address for host in self._chosen(request))

    def count(self) -> int:
        """See `HostLauncher.count`; nodes without cores, such as a head that is to be left alone, are none."""
        return sum(host.cpus > 0 for host in self._nodes())

    def towards(self, request: LaunchRequest) -> str:
        """See `HostLauncher.towards`."""
        return self.hosts(request)[-1]

    def commands(self, request: LaunchRequest, agent: AgentCommand) -> list[HostCommand]:
        """See `HostLauncher.commands`; the program hands the key on as an argument of a call of Ray's."""
        chosen = self._chosen(request)
        cores, gpus = _need(request)
        told: dict[str, object] = {
            "--address": self.argument or "auto",
            "--hosts": ",".join(host.address for host in chosen),
            "--cpus": ",".join(str(cores or host.cpus) for host in chosen),
            "--gpus": gpus,
            "--wait": request.join_timeout_s,
            "--folder": agent.folder,
            "--tie": Path(parent_death.__file__).absolute(),
            "--node-at": len(agent.words),
        }
        words = [word for option, value in told.items() for word in (option, str(value))]
        for name, value in sorted(agent.variables.items()):
            words += ["--variable", f"{name}={value}"]
        argv = (*_PROGRAM, "start", *words, "--", *agent.words, *agent.program)
        return [HostCommand(argv, tuple(range(request.nodes)))]

    def _chosen(self, request: LaunchRequest) -> list[RayHost]:
        """Give the hosts of a run, by address.

        Raises:
            RequestError: fewer have the cores and GPUs of its ranks.
        """
        cores, gpus = _need(request)
        least = cores or request.ranks_per_node * request.processors
        fit = [host for host in self._nodes() if host.cpus >= least and host.gpus >= gpus]
        if len(fit) < request.nodes:
            have = ", ".join(f"{host.address} ({host.cpus} cores, {host.gpus} GPUs)" for host in self._nodes())
            raise RequestError(
                f"launcher ray: expected {request.nodes} nodes of {least} cores and {gpus} GPUs for --nnodes "
                f"{request.nodes}, and the cluster has {len(fit)} of: {have or 'none'}; add nodes to the cluster, or "
                "ask for less"
            )
        return fit[: request.nodes]

    def _nodes(self) -> tuple[RayHost, ...]:
        if self.known is None:
            self.known = tuple(host for host in ask_hosts(self.argument or "auto") if host.address not in self.lost)
        return self.known


def _need(request: LaunchRequest) -> tuple[int, int]:
    """Give the cores (0 for all that the node has) and GPUs of one host's ranks."""
    processors = request.ranks_per_node * request.processors
    return (request.cores or 0) * processors, processors if request.device == "cuda" else 0


def ask_hosts(address: str) -> list[RayHost]:
    """Give the nodes of a Ray cluster that are alive, by address.

    Ray is asked by a program of its own: it starts threads and takes signals over, which a launcher cannot have.

    Args:
        address: where the cluster's head is, or `auto`.

    Raises:
        RequestError: there is no such cluster, or Ray is not installed.
    """
    command = (*_PROGRAM, "hosts", "--address", address)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=False)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise RequestError(
            f"launcher ray: Ray at {address} has not said its nodes for {_ASK_S:.0f} s; see ray status"
        ) from error
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RequestError(f"launcher ray: {why.removeprefix('error: ')}")
    return [RayHost(**entry) for entry in json.loads(done.stdout.strip().splitlines()[-1])]
