"""The launcher: starts the ranks of several nodes on this host, and stays until all of them have ended."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, final

from maniple.regions.error import RequestError, RunError, nearest
from maniple.runtime.cluster import parent_death
from maniple.runtime.cluster.coordinator import Coordinator
from maniple.runtime.cluster.log_folder import forget_old_runs
from maniple.runtime.cluster.vigil import HANG_S
from maniple.runtime.control.control import place
from maniple.runtime.devices.device import check_device
from maniple.runtime.machine.world_machine import given_machine
from maniple.runtime.process import environment, open_files
from maniple.runtime.process.environment import THREAD_VARIABLES, LaunchEnvironment
from maniple.runtime.process.inventory import available_cores, core_numbers

if TYPE_CHECKING:
    from maniple.runtime.cluster.coordinator_event import Finish

__all__: list[str] = []

# Importing torch and compiling kernels takes half a minute on a busy host; a rank may be through long before another.
JOIN_TIMEOUT_S = 60.0
WAYS = {"shared": "shared memory", "zmq": "ZeroMQ"}
TRANSPORTS = tuple(WAYS)
"""How tiles travel between ranks of one host, the best first; between hosts ZeroMQ carries them."""
# What a rank must not take over from a run that this launcher is part of.
OPTIONAL = {
    f"MANIPLE_{name}"
    for name in ("BELLS", "BOUND", "DETERMINISTIC", "LOG", "MACHINE", "MAPPER", "RECORD", "REPORT", "SHARED")
}
_TAIL_LINES = 20
_TAIL_BYTES = 1 << 16


@final
@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What to start.

    Args:
        target: a script, or `-m` and a module; then its arguments.
        nodes: how many nodes to emulate on this host.
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
        transport: how tiles travel between ranks of one host: `shared` memory or `zmq`.
        device: what the processors are: `cpu`, `cuda`, or the `null` device.
        bind: whether each rank keeps to cores of its own; None where the ranks together take up all of the host's.
        machine: file of a machine that programs plan for in place of the one that is found here.
        hang_timeout_s: seconds that ranks wait for one that does not get on.

    Raises:
        RequestError: a count below 1, a port or transport that is none, too few cores to bind to, a machine of other
            ranks, or nothing to run.
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
    transport: str = TRANSPORTS[0]
    device: str = "cpu"
    bind: bool | None = None
    machine: Path | None = None
    hang_timeout_s: float = HANG_S

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
        if self.record is not None and (self.record.is_dir() or not os.access(self.record.absolute().parent, os.W_OK)):
            raise RequestError(f"--record {self.record}: expected a file in a folder that can be written")
        if self.transport not in TRANSPORTS:
            raise RequestError(f"--transport: there is no {self.transport!r}{nearest(self.transport, TRANSPORTS)}")
        check_device(self.device)
        usable, wanted = len(core_numbers()), self.size * self.processors * self.cores_each()
        if self.bind and wanted > usable:
            raise RequestError(f"--bind: expected at least {wanted} cores for {self.size} ranks, got {usable}")
        if self.machine is not None:
            given_machine(self.machine, self.size, self.processors, self.device)
        _check_target(self.target)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.ranks_per_node

    def cores_each(self) -> int:
        """Cores of each processor."""
        return self.cores or max(1, available_cores() // (self.size * self.processors))

    def bound(self, rank: int) -> tuple[int, ...]:
        """Cores that a rank keeps to; none where that is left to the system."""
        usable, own = core_numbers(), self.processors * self.cores_each()
        full = self.size > 1 and own * self.size == len(usable)
        return usable[rank * own : (rank + 1) * own] if self.bind or (full and self.bind is None) else ()


def command(
    request: LaunchRequest,
    rank: int,
    head: str = "",
    token: str = "",
    shared: tuple[int, ...] = (),
    bells: tuple[tuple[int, int], ...] = (),
    logs: Path | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Give the command of a rank and the variables that it gets beyond the launcher's own.

    Args:
        request: what to start.
        rank: which rank.
        head: endpoint of the control socket.
        token: the run's secret.
        shared: descriptors of the files that the ranks share.
        bells: descriptors of the pipes that wake them.
        logs: folder of the ranks' log files.
    """
    cores = request.cores_each()
    launch = LaunchEnvironment(
        rank=rank,
        world_size=request.size,
        local_rank=rank % request.ranks_per_node,
        node=rank // request.ranks_per_node,
        nodes=request.nodes,
        ranks_per_node=request.ranks_per_node,
        processors=request.processors,
        cores=cores,
        head=head,
        token=token,
        mapper=request.mapper,
        deterministic=request.deterministic,
        join_timeout_s=request.join_timeout_s,
        record=None if request.record is None else str(request.record.absolute()),
        shared=shared,
        device=request.device,
        bells=bells,
        bound=request.bound(rank),
        machine=None if request.machine is None else str(request.machine.absolute()),
        log=None if logs is None else str(_log(logs, rank).absolute()),
        report=str(_reports(logs).absolute()) if request.report and logs is not None else None,
    )
    threads = dict.fromkeys(THREAD_VARIABLES, str(cores * request.processors))
    # Unbuffered, so that output is seen as it is written, and is in the log when a rank is killed.
    return [sys.executable, *request.target], {**launch.to_environ(), **threads, "PYTHONUNBUFFERED": "1"}


def run(request: LaunchRequest) -> int:
    """Start all ranks, wait for them, and give the exit status.

    When this returns, nothing that it started is left. What a user must know of a failure is on standard error.

    Args:
        request: what to start.

    Returns:
        0 done; 1 a rank failed; 2 the program refused the request, and rank 0 said why; 130 interrupted.

    Raises:
        RequestError: the folder for log files cannot be written.
        RunError: the port is taken, or processes may have too few open files.
    """
    from maniple.runtime.cluster.supervisor import Supervisor
    from maniple.runtime.transports.shared_memory import bells, shared_files

    open_files.check(request.size)
    token = secrets.token_hex(16)
    head = Coordinator(request.size, request.ranks_per_node, request.join_timeout_s, request.hang_timeout_s)
    sys.stdout.flush()
    if request.size > 1:
        sys.stderr.write(
            f"maniple: {request.size} ranks of this host exchange tiles through {WAYS[request.transport]}\n"
        )
        sys.stderr.flush()
    with Supervisor(head, token, request.port) as supervisor:
        logs = _log_folder(request.log_dir)
        sharing = request.size if request.size > 1 and request.transport == "shared" else 0
        with shared_files(sharing) as shared, bells(sharing) as pipes:
            inherited = (*shared, *(end for ends in pipes for end in ends))
            for rank in range(request.size):
                argv, variables = command(request, rank, supervisor.endpoint, token, shared, pipes, logs)
                environ = {**environment.inherited(), **variables}
                for name in OPTIONAL - set(variables):
                    environ.pop(name, None)
                supervisor.spawn(_tethered(argv), environ, _log(logs, rank), inherited, shown=rank == 0)
        finish = supervisor.watch()
    _report(finish, logs, request)
    if request.report and finish.status == 0:
        _print_reports(_reports(logs))
    return finish.status


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
    top = target[1].partition(".")[0]
    here = Path.cwd()  # where `python -m` looks first
    if not top or not ((here / f"{top}.py").exists() or (here / top).is_dir() or _is_installed(top)):
        raise RequestError(f"module {target[1]!r} was not found; install it, or go to the folder that holds it")


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # modules without a spec, such as __main__
        return False


def _tethered(argv: list[str]) -> list[str]:
    if not sys.platform.startswith("linux"):
        return argv  # ranks that joined notice that the launcher is gone
    return [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid()), *argv]


def _log_folder(chosen: Path | None) -> Path:
    if chosen is not None:
        try:
            chosen.mkdir(parents=True, exist_ok=True)
            for old in (*chosen.glob("rank-*.log"), *chosen.glob(_reports(chosen).name)):
                old.unlink()
        except OSError as error:
            raise RequestError(f"--log-dir {chosen}: {error.strerror or error}; choose another folder") from error
        return chosen
    base = Path(tempfile.gettempdir()) / f"maniple-{os.getuid()}"
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        status = base.lstat()
        if status.st_uid != os.getuid() or not base.is_dir() or base.is_symlink():
            raise RunError(f"{base} belongs to somebody else; choose a folder for log files with --log-dir")
        forget_old_runs(base)
        return Path(tempfile.mkdtemp(prefix=f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-", dir=base))
    except OSError as error:
        raise RunError(f"{base}: {error.strerror or error}; choose a folder for log files with --log-dir") from error


def _log(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"


def _reports(folder: Path) -> Path:
    return folder / "reports.txt"


def _print_reports(file: Path) -> None:
    """Print what trainers reported, after everything that the ranks printed."""
    told = file.read_text(encoding="utf-8") if file.exists() else "no trainer of this run took a step\n"
    sys.stdout.write(told)
    sys.stdout.flush()


def _report(finish: Finish, logs: Path, request: LaunchRequest) -> None:
    """Say once what went wrong, with the end of the log of the rank at fault where it was not shown."""
    if finish.message is None:
        return
    lines = [f"error: {finish.message}" if finish.status != 130 else finish.message]
    if finish.status == 1:
        if finish.rank is not None and finish.rank != 0:
            tail = _tail(_log(logs, finish.rank))
            if tail:
                lines += [f"last lines of {place(finish.rank, request.ranks_per_node)}:", *tail]
        lines.append(f"logs: {logs}")
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [f"  {line}" for line in lines[-_TAIL_LINES:]]
