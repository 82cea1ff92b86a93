"""The Slurm launcher: one step with one task per host, each of which becomes that host's agent."""

from __future__ import annotations

import re
import shlex
from copy import copy
from typing import TYPE_CHECKING, Self, final

from maniple.process import environment
from maniple.process.error import RequestError
from maniple.runtime.cluster.host_launcher import AgentCommand, HostCommand, HostLauncher, run_command

if TYPE_CHECKING:
    from collections.abc import Collection

    from maniple.runtime.cluster.launcher import LaunchRequest

__all__: list[str] = []

_MOST_HOSTS = 1 << 16


@final
class SlurmLauncher(HostLauncher):
    """Starts agents by `srun` in the allocation that this process is in, from `salloc` or a batch script.

    Args:
        argument: `batch` writes a script for `sbatch` in place of starting anything; else none.

    Raises:
        RequestError: it was told something else.
    """

    def __init__(self, argument: str = "") -> None:
        super().__init__(argument)
        if argument not in {"", "batch"}:
            raise RequestError(
                f"launcher slurm: expected no argument or `batch`, got {argument!r}; write --launcher slurm"
            )
        self.lost: frozenset[str] = frozenset()

    def without(self, hosts: Collection[str]) -> Self:
        """See `HostLauncher.without`; the allocation keeps them."""
        left = copy(self)
        left.lost = self.lost.union(hosts)
        return left

    def script(self, request: LaunchRequest) -> str | None:
        """See `HostLauncher.script`."""
        return batch_script(request) if self.argument else None

    def hosts(self, request: LaunchRequest) -> tuple[str, ...]:
        """See `HostLauncher.hosts`."""
        listed = self._allocated()
        if len(listed) < request.nodes:
            raise RequestError(
                f"launcher slurm: expected {request.nodes} hosts for --nnodes {request.nodes}, and the allocation has "
                f"{len(listed)}: {', '.join(listed)}; allocate more with sbatch --nodes {request.nodes}"
            )
        return tuple(listed[: request.nodes])

    def count(self) -> int:
        """See `HostLauncher.count`."""
        return len(self._allocated())

    def _allocated(self) -> list[str]:
        if self.argument:
            raise RequestError("launcher slurm:batch: expected --nnodes, got none; say how many hosts to allocate")
        found = expand(environment.slurm_hosts())
        if not found:
            raise RequestError(
                "launcher slurm: expected to run in an allocation, got none (SLURM_JOB_NODELIST is not set); start it "
                "from salloc or sbatch"
            )
        return [host for host in found if host not in self.lost]

    def towards(self, request: LaunchRequest) -> str:
        """See `HostLauncher.towards`."""
        return self.hosts(request)[-1]

    def commands(self, request: LaunchRequest, agent: AgentCommand) -> list[HostCommand]:
        """See `HostLauncher.commands`; srun gives its input to every task, and the environment says which a task is."""
        nodes = str(request.nodes)
        step = ("srun", "--nodes", nodes, "--ntasks", nodes, "--ntasks-per-node", "1", "--kill-on-bad-exit=0")
        where = ("--nodelist", ",".join(self.hosts(request)), "--distribution", "block", "--chdir", agent.folder)
        return [HostCommand((*step, *_cores(), *where, *agent.reporting()), tuple(range(request.nodes)))]


def _cores() -> tuple[str, ...]:
    """Give the options by which an agent gets all cores of its host's allocation: it divides them among its ranks.

    Since 22.05 a step does not inherit the allocation's --cpus-per-task.
    """
    told = environment.copy_variables().get("SLURM_CPUS_PER_TASK")
    return ("--cpu-bind", "none", *(() if told is None else ("--cpus-per-task", told)))


def batch_script(request: LaunchRequest) -> str:
    """Give a script for `sbatch` that allocates the hosts of a run and starts it in the allocation.

    Args:
        request: what is started.
    """
    cores = request.ranks_per_node * request.processors * (request.cores or 1)
    again: tuple[str, ...] = ("--max-restarts", str(request.max_restarts)) if request.max_restarts else ()
    again += () if request.min_nodes is None else ("--min-nodes", str(request.min_nodes))
    program = run_command(request, ("--launcher", "slurm", *again))
    lines = [
        "#!/bin/sh",
        f"#SBATCH --nodes={request.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --cpus-per-task={cores}",
        "#SBATCH --signal=B:TERM@30",  # the run ends by itself before the allocation does
        f"cd {shlex.quote(program.folder)} || exit 1",
        *(f"export {name}={shlex.quote(value)}" for name, value in sorted(program.variables.items())),
        f"exec {shlex.join(program.argv())}",
    ]
    return "\n".join(lines) + "\n"


def expand(text: str) -> list[str]:
    """Give the hosts of a list as Slurm writes it, such as `a[01-03,7],b-x2`, in its order.

    Raises:
        RequestError: it is none.
    """
    found: list[str] = []
    entries: list[str] = re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text)
    if ",".join(entries) != text:
        raise RequestError(f"SLURM_JOB_NODELIST: expected hosts such as a[01-03,7],b, got {text!r}")
    for entry in entries:
        found += _expand_one(entry, text)
        if len(found) > _MOST_HOSTS:
            raise RequestError(f"SLURM_JOB_NODELIST: expected at most {_MOST_HOSTS} hosts, got {text!r}")
    return found


def _expand_one(entry: str, text: str) -> list[str]:
    head, bracket, rest = entry.partition("[")
    if not bracket:
        return [entry]
    inside, closed, tail = rest.partition("]")
    names: list[str] = []
    for part in inside.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not closed or not (first.isdigit() and last.isdigit()) or not 0 <= int(last) - int(first) < _MOST_HOSTS:
            raise RequestError(f"SLURM_JOB_NODELIST: expected hosts such as a[01-03,7],b, got {text!r}")
        names += [f"{head}{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return [f"{name}{end}" for name in names for end in (_expand_one(tail, text) if tail else [""])]
