"""A run: its ranks are started through a launcher, and watched until all of them have ended."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from maniple.process import open_files
from maniple.process.environment import CHOICES, THREAD_VARIABLES, LaunchEnvironment
from maniple.runtime.cluster.coordinator import Coordinator
from maniple.runtime.cluster.hosts.key import mint
from maniple.runtime.cluster.launcher import LaunchRequest, RankCommand
from maniple.runtime.cluster.log_folder import log_file, make_log_folder, read_tail, reports_file
from maniple.runtime.cluster.registry import make_launcher
from maniple.runtime.cluster.restarts.attempt import Attempt, persist
from maniple.runtime.control.control import place
from maniple.runtime.devices.registry import CPU
from maniple.runtime.transports.registry import TRANSPORTS
from maniple.runtime.transports.transport import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from maniple.runtime.cluster.agent import Agent
    from maniple.runtime.cluster.coordinator_event import Finish
    from maniple.runtime.cluster.launcher import Launcher

__all__: list[str] = []

SHARED_MEMORY = "shared memory"
"""How messages call the way of tiles between ranks that share memory."""


def command(
    request: LaunchRequest,
    rank: int,
    endpoint: str = "",
    token: str = "",
    shared: tuple[int, ...] = (),
    wakeup_pipes: tuple[tuple[int, int], ...] = (),
    logs: Path | None = None,
    launcher: Launcher | None = None,
    interface: str | None = None,
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
        interface: address under which other hosts reach this one; None for what the launcher says.
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
        interface=interface or (LOOPBACK if launcher is None else launcher.address(node)),
        shared_from=node * request.ranks_per_node if request.spread else 0,
        encrypt_tiles=request.encrypt_tiles,
        verify_tiles=request.verify_tiles,
        memory_bytes=request.memory_bytes,
        compiles=request.compiles,
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
    if asked.shares_memory and request.device != CPU:  # which of both only ranks find out
        return f"memory of their GPUs or {asked.way}, as rank 0 says", asked.way
    shares = asked.shares_memory and launcher.same_host
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

    open_files.check(request.size)

    def begin(number: int, before: Finish | None) -> Attempt:
        launcher, token = make_launcher(request), mint()
        coordinator = Coordinator(
            *(request.size, request.ranks_per_node, request.join_timeout_s, request.hang_timeout_s),
            attempt=number,
            again=number < request.max_restarts,
        )
        if before is None:
            announce(request, launcher)
        with Supervisor(coordinator, token, request.port, launcher.coordinator_address()) as supervisor:
            logs = make_log_folder(attempt_folder(request.log_dir, number))
            setting = Setting(range(request.size), supervisor.endpoint, token, logs)
            start_ranks(request, supervisor.agent, setting, launcher)
            finish = supervisor.watch()
        tail = [] if finish.rank is None else read_tail(log_file(logs, finish.rank))
        tell(finish, tail, str(logs), lambda rank: place(rank, request.ranks_per_node))
        if request.report and finish.status == 0:
            print_reports(reports_file(logs))
        return Attempt(request.size, finish, coordinator.course)

    return persist(request.max_restarts, begin)


def attempt_folder(chosen: Path | None, number: int) -> Path | None:
    """Name the folder of an attempt's logs: the chosen one, and folders in it for those after the first."""
    return chosen if chosen is None or not number else chosen / f"attempt-{number}"


def announce(request: LaunchRequest, launcher: Launcher) -> None:
    """Say how the ranks of a run exchange tiles.

    Args:
        request: what is started.
        launcher: what starts it.
    """
    sys.stdout.flush()
    if request.size == 1:
        return
    within, between = ways(request, launcher)
    where, way = (" of this host", within) if launcher.same_host else ("", between)
    if request.spread:
        where = f" of {request.nodes} hosts"
        way = f"{within} within a host, {between} between hosts" if request.ranks_per_node > 1 else between
    guards = [word for word, on in (("encrypted", request.encrypt_tiles), ("verified", request.verify_tiles)) if on]
    way += f", {' and '.join(guards)} where they go through sockets" if guards else ""
    emulates = request.nodes > 1 and launcher.same_host and not request.spread
    note = f"; {request.nodes} nodes are emulated on this host" if emulates else ""
    sys.stderr.write(f"maniple: {request.size} ranks{where} exchange tiles through {way}{note}\n")
    sys.stderr.flush()


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """Where the ranks of a host run, and where their coordinator is.

    Args:
        ranks: which are started here.
        endpoint: of the coordinator's socket.
        token: the run's secret.
        logs: folder of their log files.
        interface: address under which other hosts reach this one; None for what the launcher says.
    """

    ranks: range
    endpoint: str
    token: str = field(repr=False)
    logs: Path
    interface: str | None = None


def start_ranks(request: LaunchRequest, agent: Agent, setting: Setting, launcher: Launcher) -> None:
    """Start the ranks of a host; they share memory if their transport uses it.

    Args:
        request: what is started.
        agent: owns them.
        setting: which they are.
        launcher: starts them.

    Raises:
        RunError: one cannot be started.
    """
    from maniple.runtime.transports.shared_memory import shared_files, wakeup_pipes

    shares = launcher.same_host and TRANSPORTS.lookup(request.transport).shares_memory
    sharing = len(setting.ranks) if len(setting.ranks) > 1 and shares else 0
    with (
        shared_files(sharing) as shared,
        wakeup_pipes(sharing) as pipes,
        launcher.preparing(request, len(setting.ranks)),
    ):
        inherited = (*shared, *(end for ends in pipes for end in ends))
        for rank in setting.ranks:
            argv, variables = command(
                *(request, rank, setting.endpoint, setting.token, shared, pipes, setting.logs),
                launcher=launcher,
                interface=setting.interface,
            )
            node, without = rank // request.ranks_per_node, CHOICES - set(variables)
            wanted = RankCommand(rank, node, tuple(argv), variables, without, inherited)
            agent.spawn(launcher, wanted, log_file(setting.logs, rank), shown=rank == 0)


def print_reports(file: Path) -> None:
    """Print what trainers reported, after everything that the ranks printed."""
    told = file.read_text(encoding="utf-8") if file.exists() else "no trainer of this run took a step\n"
    sys.stdout.write(told)
    sys.stdout.flush()


def tell(finish: Finish, tail: Sequence[str], logs: str, named: Callable[[int], str]) -> None:
    """Say once what went wrong, with the end of the log of the rank at fault where it was not shown.

    Args:
        finish: how the run ended.
        tail: the last lines of that log, indented.
        logs: where the log files are.
        named: gives the place of a rank.
    """
    if finish.message is None:
        return
    lines = [f"error: {finish.message}" if finish.status != 130 else finish.message]
    if finish.status in {1, 2}:
        if finish.rank and tail:
            lines += [f"last lines of {named(finish.rank)}:", *tail]
        lines.append(f"logs: {logs}")
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()
