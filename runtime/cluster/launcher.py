"""Launchers: how the processes of a run are started, on this host or elsewhere. These are the bases of one's own.

    request ── one command per rank ──▶ launcher ── one process per rank ──▶ supervisor, which watches and ends them

What is started, and what becomes of it, is the runtime's: places, secrets, logs, the control socket, deadlines and exit
status. A launcher turns a command into a process and gives a handle of it, nothing more. ``registry`` has all by name,
``local`` is the one for this host.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, final

from maniple.process import environment
from maniple.process.error import RequestError
from maniple.process.inventory import available_cores, core_numbers
from maniple.runtime.cluster.vigil import HANG_S
from maniple.runtime.devices.registry import CPU, DEVICES
from maniple.runtime.machine.world_machine import load_given_machine
from maniple.runtime.transports.registry import DEFAULT, TRANSPORTS
from maniple.runtime.transports.transport import LOOPBACK

__all__: list[str] = []

# Importing torch and compiling kernels takes half a minute on a busy host; a rank may be through long before another.
JOIN_TIMEOUT_S = 60.0


@final
@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What to start.

    Args:
        target: a script, or `-m` and a module; then its arguments.
        nodes: how many nodes; the launcher says on which hosts.
        ranks_per_node: processes of each.
        processors: of each rank.
        cores: of each processor; None shares the host's evenly.
        port: of the control socket; None lets the system choose.
        join_timeout_s: how long ranks wait for each other, in seconds.
        mapper: name of the mapper that programs use by default.
        deterministic: whether launches that are not traced run in the order of the program.
        log_dir: folder of the ranks' log files; None makes a fresh one.
        record: file for a timeline of the whole run.
        report: whether to print last what trainers report of their steps.
        transport: name of what carries tiles between ranks, such as `shared` (memory, within a host) or `zmq`.
        device: name of what the processors are, such as `cpu`, `cuda` or `null`.
        bind: whether each rank keeps to cores of its own; None where the ranks together take up all of the host's.
        machine: file of a machine that programs plan for in place of the one that is found here.
        hang_timeout_s: seconds that ranks wait for one that does not get on.
        launcher: name of what starts the ranks, and after a colon what it is told, if anything.
        spread: whether every node is a host of its own, of which this is one.
        encrypt_tiles: whether nobody on the way can read tiles that go through sockets.
        verify_tiles: whether tiles that were altered on their way through sockets are refused.
        survey: whether the program only looks at the hosts, which may differ.
        max_restarts: how often the run may begin again after a rank or host failed.
        min_nodes: nodes that it may go on with where hosts were lost; None for all.
        memory_bytes: the most that programs may have of each memory; None for all that is there.
        compiles: whether torch compiles what trainers' bodies call.
        imports: the module whose import the ranks of a host share, where the system lets them; None gives each an
            interpreter of its own.

    Raises:
        RequestError: a count below 1, a port, device or transport that is none, too few cores to bind to, a machine of
            other ranks, or nothing to run.
    """

    target: tuple[str, ...]
    nodes: int = 1
    ranks_per_node: int = 1
    processors: int = 1
    cores: int | None = None
    port: int | None = None
    join_timeout_s: float = JOIN_TIMEOUT_S
    mapper: str | None = None
    deterministic: bool = False
    log_dir: Path | None = None
    record: Path | None = None
    report: bool = False
    transport: str = DEFAULT
    device: str = CPU
    bind: bool | None = None
    machine: Path | None = None
    hang_timeout_s: float = HANG_S
    launcher: str = "local"
    spread: bool = False
    encrypt_tiles: bool = False
    verify_tiles: bool = False
    survey: bool = False
    max_restarts: int = 0
    min_nodes: int | None = None
    memory_bytes: int | None = None
    compiles: bool = False
    imports: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be started."""
        counts = {
            "--nodes": self.nodes,
            "--ranks-per-node": self.ranks_per_node,
            "--processors": self.processors,
            "--cores": 1 if self.cores is None else self.cores,
        }
        for option, count in counts.items():
            if count < 1:
                raise RequestError(f"{option}: expected at least 1, got {count}")
        if self.port is not None and not 0 < self.port < 65536:
            raise RequestError(f"--port: expected 1 to 65535, got {self.port}; leave it out to let the launcher choose")
        if not 0 < self.join_timeout_s < float("inf"):
            raise RequestError(f"--join-timeout: expected seconds above 0, got {self.join_timeout_s:g}")
        if not 0 < self.hang_timeout_s < float("inf"):
            raise RequestError(f"--hang-timeout: expected seconds above 0, got {self.hang_timeout_s:g}")
        self._check_restarts()
        if self.record is not None and (self.record.is_dir() or not os.access(self.record.absolute().parent, os.W_OK)):
            raise RequestError(f"--record {self.record}: expected a file in a folder that can be written")
        if (self.encrypt_tiles or self.verify_tiles) and not TRANSPORTS.lookup(self.transport).guards:
            raise RequestError(
                f"--encrypt-tiles and --verify-tiles: transport {self.transport!r} cannot; leave them out, or run with "
                "--transport zmq"
            )
        DEVICES.lookup(self.device)
        usable, wanted = len(core_numbers()), self.ranks_here * self.processors * self.cores_each()
        if self.bind and wanted > usable:
            raise RequestError(f"--bind: expected at least {wanted} cores for {self.ranks_here} ranks, got {usable}")
        if self.machine is not None:
            load_given_machine(self.machine, self.size, self.processors, self.device)
        _check_target(self.target)
        if self.imports is not None:
            _check_imports(self.imports, self.target)

    def _check_restarts(self) -> None:
        if self.max_restarts < 0:
            raise RequestError(f"--max-restarts: expected 0 or more, got {self.max_restarts}")
        if self.min_nodes is not None and not self.max_restarts:
            raise RequestError("--min-nodes: only a run that may begin again goes on with fewer; give --max-restarts")
        if self.min_nodes is not None and not 1 <= self.min_nodes <= self.nodes:
            raise RequestError(
                f"--min-nodes: expected 1 to {self.nodes} of --nnodes {self.nodes}, got {self.min_nodes}"
            )

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def ranks_here(self) -> int:
        """Number of ranks of each host."""
        return self.ranks_per_node if self.spread else self.size

    def cores_each(self) -> int:
        """Cores of each processor."""
        return self.cores or max(1, available_cores() // (self.ranks_here * self.processors))

    def cores_of(self, rank: int) -> tuple[int, ...]:
        """Cores that a rank keeps to; none where that is left to the system."""
        usable, own = core_numbers(), self.processors * self.cores_each()
        full, place = self.ranks_here > 1 and own * self.ranks_here == len(usable), rank % self.ranks_here
        return usable[place * own : (place + 1) * own] if self.bind or (full and self.bind is None) else ()


@final
@dataclass(frozen=True, slots=True)
class RankCommand:
    """One rank, as a launcher is told to start it.

    Args:
        rank: which.
        node: of which node; the ranks of a node belong on one host.
        argv: the command. It holds no secret.
        variables: what the process must find in its environment, beside what its host gives it. The run's secret is
            among them, and every user of a host can read command lines: they travel in an environment, through a pipe
            or in a file that nobody else reads, never on a command line.
        without: variables that it must not have from elsewhere, such as from a run that this process is part of.
        inherited: descriptors that it must have, under the same numbers; none where ranks may be on other hosts.
    """

    rank: int
    node: int
    argv: tuple[str, ...]
    variables: Mapping[str, str] = field(repr=False)
    without: frozenset[str] = frozenset()
    inherited: tuple[int, ...] = ()

    def all_variables(self, own: Collection[str] | None = None) -> dict[str, str]:
        """Give all variables of a process of this host: those that it would have anyway, and the rank's own.

        Args:
            own: names of the rank's own that it has; None for all.
        """
        passed_on = {name: value for name, value in environment.copy_variables().items() if name not in self.without}
        return {**passed_on, **{name: value for name, value in self.variables.items() if own is None or name in own}}


@final
@dataclass(frozen=True, slots=True)
class Streams:
    """Where a rank's input is from and its output goes, as descriptors that are open while it is started.

    Args:
        stdin: None for this process's own, or `subprocess.DEVNULL`.
        stdout: takes all that it prints.
        stderr: likewise.
    """

    stdin: int | None
    stdout: int
    stderr: int


class RankProcess(ABC):
    """A handle of one rank's process, which need not be a child of this one, nor on this host."""

    @abstractmethod
    def poll(self) -> int | None:
        """Give its exit status, or minus the signal that ended it; None while it runs.

        Asked many times a second, so it must not wait. Once it gave a status it goes on to give that.
        """

    @abstractmethod
    def terminate(self) -> None:
        """Ask it, and what it started, to end; nothing where it has ended."""

    @abstractmethod
    def kill(self) -> None:
        """End it, and what it started; nothing where that has ended. Also called after it ended by itself."""

    @abstractmethod
    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended and let go of what stands for it; called last, after `kill`.

        Args:
            timeout_s: seconds, at most.

        Returns:
            Whether it has ended.
        """

    def pass_on(self, number: int, *, group: bool) -> bool:
        """Pass a signal on: to the process and what it started, or to it alone; says whether that was possible.

        Where it is not, as here, a rank that is stuck writes no stacks to its log, and ranks go on while their launcher
        is suspended (Ctrl-Z).

        Args:
            number: of the signal.
            group: whether what it started gets it too.
        """
        return False


class Launcher(ABC):
    """What starts the processes of a run; one is made for each.

    A class whose ranks are all on this host says so by `same_host`: then they inherit the memory that they share, keep
    to its cores, and write their stacks to its log files. Else these are left out, and what a request names (scripts,
    the machine, the timeline) must be found under the same path where the ranks are.

    Args:
        argument: what follows the colon in `--launcher NAME:ARGUMENT`; empty where there is none.

    Raises:
        RequestError: it cannot work, or not with this argument.
    """

    same_host: ClassVar[bool] = False

    def __init__(self, argument: str = "") -> None:
        self.argument = argument

    def coordinator_address(self) -> str:
        """Give the numeric address of this host under which all ranks reach the control socket, which binds to it."""
        return LOOPBACK

    def address(self, node: int) -> str:
        """Give the numeric address under which ranks of other nodes reach those of a node, for their transport."""
        return LOOPBACK

    def preparing(self, request: LaunchRequest, ranks: int) -> AbstractContextManager[object]:
        """Give a context inside which all ranks of a host are started; here it does nothing.

        Args:
            request: what is started.
            ranks: how many of them here.
        """
        return nullcontext()

    @abstractmethod
    def start(self, command: RankCommand, streams: Streams) -> RankProcess:
        """Start a rank and return, whatever becomes of it.

        Raises:
            RunError: it cannot be started; those that were are ended.
        """


def first_entry(target: Sequence[str]) -> str:
    """Give where the interpreter looks first for what a program imports.

    Args:
        target: a script, or `-m` and a module; then its arguments.
    """
    return str(Path.cwd()) if target[0] == "-m" else str(Path(target[0]).resolve().parent)


def _check_target(target: tuple[str, ...]) -> None:
    if not target:
        raise RequestError("expected a script or -m MODULE to run, got none")
    if target[0] != "-m":
        path = Path(target[0])
        if not path.exists():
            raise RequestError(f"script {target[0]!r} does not exist; the current folder is {Path.cwd()}")
        if path.is_dir() and not (path / "__main__.py").exists():
            raise RequestError(f"script {target[0]!r}: expected a file, got a folder without __main__.py")
        return
    if len(target) < 2:
        raise RequestError("-m: expected a module to run, got none")
    if not _is_found(target[1], target):
        raise RequestError(f"module {target[1]!r} was not found; install it, or go to the folder that holds it")


def _check_imports(module: str, target: tuple[str, ...]) -> None:
    if not _is_found(module, target):
        raise RequestError(f"--imports: module {module!r} was not found; install it, or put it beside the script")


def _is_found(module: str, target: tuple[str, ...]) -> bool:
    top, first = module.partition(".")[0], Path(first_entry(target))
    return bool(top) and ((first / f"{top}.py").exists() or (first / top).is_dir() or _is_installed(top))


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # modules without a spec, such as __main__
        return False
