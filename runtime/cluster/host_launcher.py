"""Launchers of hosts: how one agent is started on each host of a run. These are builders of command lines.

    this host                                            each host
    coordinator ── command line ──▶ ssh, srun, mpirun ──▶ agent ──▶ its ranks
                   the run's key, through standard input

What the ranks are, who watches them and how they end is no launcher's business. ``hosts/ssh`` and its neighbours are
such builders.
"""

from __future__ import annotations

import re
import shlex
import sys
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self, final

from maniple.process import environment
from maniple.process.error import RunError
from maniple.runtime.cluster.launcher import Launcher

if TYPE_CHECKING:
    from collections.abc import Collection

    from maniple.runtime.cluster.launcher import LaunchRequest, RankCommand, RankProcess, Streams

__all__: list[str] = []

_REPORT = (
    '"$@"; s=$?; [ $s = 0 ] || echo "maniple: agent ${SLURM_PROCID:-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}}'
    ' ended with exit status $s" >&2; exit $s'
)
_REPORTED = re.compile(r"maniple: agent (\d+) ended with exit status (\d+)")


@final
@dataclass(frozen=True, slots=True)
class AgentCommand:
    """The command of an agent, the same on each host but for its node.

    Args:
        words: all of it but the node and the program.
        program: the script, or `-m` and a module, with its arguments.
        folder: the folder to start it in.
        variables: that it needs beside those of its host; none is a secret.
    """

    words: tuple[str, ...]
    program: tuple[str, ...]
    folder: str
    variables: dict[str, str]

    def argv(self, node: int | None = None) -> tuple[str, ...]:
        """Give it for a node; None where the host's environment says which."""
        place = () if node is None else ("--node-rank", str(node))
        return (*self.words, *place, *self.program)

    def reporting(self) -> tuple[str, ...]:
        """Give it for a program that starts all agents at once, which may not say that one of them has ended.

        A shell around it says so on standard error (`ended_agents`), with the agent's number as srun or mpirun has it.
        """
        return ("sh", "-c", _REPORT, "sh", *self.argv())

    def shell(self, node: int | None = None) -> str:
        """Give it as a line for a shell."""
        told = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.variables.items())]
        return f"cd {shlex.quote(self.folder)} && exec env {' '.join([*told, shlex.join(self.argv(node))])}"


def ended_agents(said: str) -> dict[int, int]:
    """Give the exit status of each agent that has ended badly, by node, as the shells around them said.

    Args:
        said: what came on standard error.
    """
    return {int(node): int(status) for node, status in _REPORTED.findall(said)}


@final
@dataclass(frozen=True, slots=True)
class HostCommand:
    """A command of this host that starts agents, and reads the run's key from its standard input.

    Args:
        argv: the command. It holds no secret.
        nodes: whose agents it starts.
    """

    argv: tuple[str, ...]
    nodes: tuple[int, ...]


class HostLauncher(Launcher):
    """What starts an agent on each host of a run.

    A class whose commands do not hand their standard input on to every agent says so by `passes_input`: then the run's
    key is in a file that only its owner can read, below a home folder that all hosts must share.
    """

    passes_input: ClassVar[bool] = True

    @abstractmethod
    def count(self) -> int:
        """Give how many hosts there are: nodes that a run has where nothing is said.

        Raises:
            RequestError: there are none.
        """

    @abstractmethod
    def hosts(self, request: LaunchRequest) -> tuple[str, ...]:
        """Give the hosts of the nodes, in order, as far as they are known before their agents come.

        Args:
            request: what is started.

        Raises:
            RequestError: there are fewer hosts, or slots of one, than the request has nodes or ranks.
        """

    @abstractmethod
    def towards(self, request: LaunchRequest) -> str:
        """Give the name or address of another host of the run, to find out by which address it reaches this one."""

    @abstractmethod
    def commands(self, request: LaunchRequest, agent: AgentCommand) -> list[HostCommand]:
        """Give the commands that start the agents.

        Args:
            request: what is started.
            agent: what they start on each host.
        """

    def without(self, hosts: Collection[str]) -> Self:
        """Give one that starts no agents on these hosts, which were lost; itself where whatever it asks knows better.

        Args:
            hosts: names, as `hosts` gave them.
        """
        return self

    def script(self, request: LaunchRequest) -> str | None:
        """Give a script that starts the run later, by a batch system; None to start it now.

        Args:
            request: what is started.
        """
        return None

    @final
    def start(self, command: RankCommand, streams: Streams) -> RankProcess:
        """Refuse: agents start ranks."""
        raise RunError(f"launcher {type(self).__name__} starts agents, not rank {command.rank}; see docs/extending.md")


def agent_command(request: LaunchRequest, endpoint: str, interface: str | None = None, key: str = "-") -> AgentCommand:
    """Give the command of an agent of a run.

    Args:
        request: what is started.
        endpoint: where the hosts meet, `HOST:PORT`.
        interface: the name of the interface that every host is to use; None for that of the route.
        key: where each agent finds the run's key.
    """
    own = () if interface is None else ("--interface", interface)
    return run_command(request, ("--join", "--head", endpoint, "--key", key, *own))


def run_command(request: LaunchRequest, more: tuple[str, ...]) -> AgentCommand:
    """Give the command that starts a request's program, on other hosts or later.

    Args:
        request: what is started.
        more: options that say how.
    """
    valued: dict[str, object] = {
        "--nnodes": request.nodes,
        "--nproc-per-node": request.ranks_per_node,
        "--processors": request.processors,
        "--device": request.device,
        "--machine": None if request.machine is None else request.machine.absolute(),
        "--cores": request.cores,
        "--mapper": request.mapper,
        "--memory": request.memory_bytes,
        "--join-timeout": request.join_timeout_s,
        "--hang-timeout": request.hang_timeout_s,
        "--log-dir": None if request.log_dir is None else request.log_dir.absolute(),
        "--record": None if request.record is None else request.record.absolute(),
        "--transport": request.transport,
        "--imports": request.imports,
    }
    flags = {
        "--compile": request.compiles,
        "--deterministic": request.deterministic,
        "--encrypt-tiles": request.encrypt_tiles,
        "--verify-tiles": request.verify_tiles,
        "--survey": request.survey,
        "--report": request.report,
        "--fresh": request.imports is None,
        "--bind": request.bind is True,
        "--no-bind": request.bind is False,
    }
    words = [word for option, value in valued.items() if value is not None for word in (option, str(value))]
    words += [option for option, wanted in flags.items() if wanted]
    variables = {name: value for name, value in environment.copy_variables().items() if name == "PYTHONPATH"}
    start = (sys.executable, "-m", "maniple.cli", "run", *words, *more)
    return AgentCommand(start, request.target, str(Path.cwd()), variables)
