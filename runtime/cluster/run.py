"""A run: its ranks are started through a launcher, and watched until all of them have ended."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING

from maniple.process import open_files
from maniple.process.environment import THREAD_VARIABLES, LaunchEnvironment
from maniple.runtime.cluster.coordinator import Coordinator
from maniple.runtime.cluster.launcher import LaunchRequest, RankCommand
from maniple.runtime.cluster.log_folder import log_file, make_log_folder, read_tail, reports_file
from maniple.runtime.cluster.registry import make_launcher
from maniple.runtime.control.control import place
from maniple.runtime.devices.registry import CPU
from maniple.runtime.transports.registry import TRANSPORTS
from maniple.runtime.transports.transport import LOOPBACK

if TYPE_CHECKING:
    from pathlib import Path

    from maniple.runtime.cluster.coordinator_event import Finish
    from maniple.runtime.cluster.launcher import Launcher
    from maniple.runtime.cluster.supervisor import Supervisor

__all__: list[str] = []

SHARED_MEMORY = "shared memory"
"""How messages call the way of tiles between ranks that share memory."""
# What a rank must not take over from a run that this process is part of.
OPTIONAL = frozenset(
    f"MANIPLE_{name}"
    for name in (
        *("BOUND", "DETERMINISTIC", "DEVICE", "INTERFACE", "LOG", "MACHINE", "MAPPER", "RECORD", "REPORT", "SHARED"),
        *("TRANSPORT", "WAKEUP_PIPES"),
    )
)


def command(
    request: LaunchRequest,
    rank: int,
    endpoint: str = "",
    token: str = "",
    shared: tuple[int, ...] = (),
    wakeup_pipes: tuple[tuple[int, int], ...] = (),
    logs: Path | None = None,
    launcher: Launcher | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Give the command of a rank and the variables that it gets beyond those of its host.

    Args:
        request: what to start.
        rank: which rank.
        endpoint: where the coordinator's socket is.
        token: the run's secret.
        shared: descriptors of the files that the ranks share.
        wakeup_pipes: descriptors of the pipes that wake them.
        logs: folder of the ranks' log files.
        launcher: what will start it; None for one of this host.
    """
    cores, node = request.cores_each(), rank // request.ranks_per_node
    here = launcher is None or launcher.same_host
    launch = LaunchEnvironment(
        rank=rank,
        world_size=request.size,
        local_rank=rank % request.ranks_per_node,
        node=node,
        nodes=request.nodes,
        ranks_per_node=request.ranks_per_node,
        processors=request.processors,
        cores=cores,
        endpoint=endpoint,
        token=token,
        mapper=request.mapper,
        deterministic=request.deterministic,
        join_timeout_s=request.join_timeout_s,
        record=None if request.record is None else str(request.record.absolute()),
        shared=shared,
        device=request.device,
        wakeup_pipes=wakeup_pipes,
        bound=request.cores_of(rank) if here else (),
        machine=None if request.machine is None else str(request.machine.absolute()),
        log=str(log_file(logs, rank).absolute()) if here and logs is not None else None,
        report=str(reports_file(logs).absolute()) if request.report and logs is not None else None,
        transport=request.transport,
        interface=LOOPBACK if launcher is None else launcher.address(node),
    )
    threads = dict.fromkeys(THREAD_VARIABLES, str(cores * request.processors))
    # Unbuffered, so that output is seen as it is written, and is in the log when a rank is killed.
    return [sys.executable, *request.target], {**launch.to_environ(), **threads, "PYTHONUNBUFFERED": "1"}


def ways(request: LaunchRequest, launcher: Launcher) -> tuple[str, str]:
    """Give how tiles travel in a run, as messages say it: between ranks of one host, and of different hosts.

    Ranks share memory where the launcher can hand it to them, and where that is what their processors work on.

    Args:
        request: what is started.
        launcher: what starts it.
    """
    asked = TRANSPORTS.lookup(request.transport)
    shares = asked.shares_memory and launcher.same_host and request.device == CPU
    return SHARED_MEMORY if shares else asked.way, asked.way


def run(request: LaunchRequest) -> int:
    """Start all ranks, wait for them, and give the exit status.

    When this returns, nothing that it started is left. What a user must know of a failure is on standard error.

    Args:
        request: what to start.

    Returns:
        0 done; 1 a rank failed; 2 the program refused the request, and rank 0 said why; 130 interrupted.

    Raises:
        RequestError: there is no such launcher, or the folder for log files cannot be written.
        RunError: the port is taken, a rank cannot be started, or processes may have too few open files.
    """
    from maniple.runtime.cluster.supervisor import Supervisor

    launcher = make_launcher(request)
    open_files.check(request.size)
    token = secrets.token_hex(16)
    coordinator = Coordinator(request.size, request.ranks_per_node, request.join_timeout_s, request.hang_timeout_s)
    sys.stdout.flush()
    if request.size > 1:
        within, between = ways(request, launcher)
        where, way = (" of this host", within) if launcher.same_host else ("", between)
        sys.stderr.write(f"maniple: {request.size} ranks{where} exchange tiles through {way}\n")
        sys.stderr.flush()
    with Supervisor(coordinator, token, request.port, launcher.coordinator_address()) as supervisor:
        logs = make_log_folder(request.log_dir)
        _start(request, launcher, supervisor, token, logs)
        finish = supervisor.watch()
    _report(finish, logs, request)
    if request.report and finish.status == 0:
        _print_reports(reports_file(logs))
    return finish.status


def _start(request: LaunchRequest, launcher: Launcher, supervisor: Supervisor, token: str, logs: Path) -> None:
    """Start all ranks; those of this host share memory if their transport uses it."""
    from maniple.runtime.transports.shared_memory import shared_files, wakeup_pipes

    shares = launcher.same_host and TRANSPORTS.lookup(request.transport).shares_memory
    sharing = request.size if request.size > 1 and shares else 0
    with shared_files(sharing) as shared, wakeup_pipes(sharing) as pipes:
        inherited = (*shared, *(end for ends in pipes for end in ends))
        for rank in range(request.size):
            argv, variables = command(request, rank, supervisor.endpoint, token, shared, pipes, logs, launcher)
            node, without = rank // request.ranks_per_node, OPTIONAL - set(variables)
            wanted = RankCommand(rank, node, tuple(argv), variables, without, inherited)
            supervisor.spawn(launcher, wanted, log_file(logs, rank), shown=rank == 0)


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
            tail = read_tail(log_file(logs, finish.rank))
            if tail:
                lines += [f"last lines of {place(finish.rank, request.ranks_per_node)}:", *tail]
        lines.append(f"logs: {logs}")
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()
