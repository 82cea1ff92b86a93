"""A run over several hosts, as each of them takes part: one leads it, the others follow.

host of node 0             host of node 1        ...
==========================  ==================
coordinator, supervisor     agent's service
agent, ranks 0, 1           agent, ranks 2, 3
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from maniple.process import open_files
from maniple.process.error import RunError
from maniple.runtime.cluster.agent_service import AgentService
from maniple.runtime.cluster.agent_starter import AgentStarter
from maniple.runtime.cluster.coordinator import Coordinator
from maniple.runtime.cluster.host_launcher import agent_command
from maniple.runtime.cluster.hosts import key as keys
from maniple.runtime.cluster.local import LocalLauncher
from maniple.runtime.cluster.log_folder import log_file, make_log_folder, read_tail, reports_file
from maniple.runtime.cluster.meeting import host_name, terms
from maniple.runtime.cluster.restarts.attempt import Attempt, persist, say
from maniple.runtime.cluster.restarts.hosts_left import HostsLeft
from maniple.runtime.cluster.roster import Roster, Seat
from maniple.runtime.cluster.run import Setting, announce, attempt_folder, print_reports, start_ranks, tell
from maniple.runtime.cluster.supervisor import Supervisor
from maniple.runtime.transports.agent_message import AgentHello

if TYPE_CHECKING:
    from maniple.runtime.cluster.agent import Agent
    from maniple.runtime.cluster.coordinator_event import Finish
    from maniple.runtime.cluster.host_launcher import HostLauncher
    from maniple.runtime.cluster.launcher import LaunchRequest
    from maniple.runtime.cluster.meeting import Meeting

__all__: list[str] = []

# How often a host looks for a key that the host of node 0 has not written yet.
LOOK_S = 0.1
TELL_S = 2.0
"""A key that is not there for so long is told of; hosts that are started together have it sooner."""


def lead(
    request: LaunchRequest, meeting: Meeting, launcher: HostLauncher | None = None, interface: str | None = None
) -> int:
    """Lead a run over several hosts: wait for their agents, watch all ranks, and give the exit status.

    Args:
        request: what is started, of which this host starts its node.
        meeting: where the others come to.
        launcher: what starts the agents; None where their users do.
        interface: the name of the interface that a launcher's agents are to use; None for that of the route.

    Returns:
        As `maniple.runtime.cluster.run.run`.

    Raises:
        RequestError: the key's file is there already, or cannot be written or read.
        RunError: the port is taken, or a rank cannot be started.
    """
    open_files.check(request.size)
    token, written = _mint(meeting, launcher)
    hosts = HostsLeft(request, launcher)

    def begin(number: int, before: Finish | None) -> Attempt | None:
        if before is not None and not hosts.lose(before.lost):
            return None
        wanted, starter = hosts.request, hosts.launcher
        roster = _roster(wanted, meeting, starter)
        coordinator = Coordinator(
            *(wanted.size, wanted.ranks_per_node, wanted.join_timeout_s, wanted.hang_timeout_s, roster, number),
            again=number < request.max_restarts,
        )
        logs = make_log_folder(attempt_folder(_own_folder(request, meeting), number))
        with Supervisor(coordinator, token, meeting.port, meeting.head) as supervisor, ExitStack() as files:
            if written is not None:  # once the port is this run's, and so what lies in the port's own file is of none
                files.enter_context(keys.lying_in(written, token, replace=meeting.key is None))
                sys.stderr.write(f"maniple: the key of this run is in {written}\n")
            announce(wanted, LocalLauncher())
            finish = _watch(wanted, meeting, starter, interface, supervisor, roster, token, logs)
        _report(finish, roster, logs)
        if request.report and finish.status == 0 and meeting.node == 0:
            print_reports(reports_file(logs))
        return Attempt(wanted.size, finish, coordinator.course)

    return persist(request.max_restarts, begin)


def _mint(meeting: Meeting, launcher: HostLauncher | None) -> tuple[str, Path | None]:
    """Give the key of a run, and the file that it is to be written to, if any."""
    if launcher is not None:
        return keys.mint(), None
    source = meeting.key or str(keys.default_file(meeting.endpoint))
    token = None if _is_file(source) else keys.read(source)
    return (keys.mint(), Path(source).expanduser()) if token is None else (token, None)


def _roster(request: LaunchRequest, meeting: Meeting, launcher: HostLauncher | None) -> Roster:
    """Give the hosts of a run, as far as they are known before they come."""
    names = ("",) * request.nodes if launcher is None else launcher.hosts(request)
    seats = [Seat(host, home=node == meeting.node) for node, host in enumerate(names)]
    if meeting.node is not None:
        seats[meeting.node].host, seats[meeting.node].address = host_name(), meeting.address
    advice = (
        f"start there: maniple run --nnodes {request.nodes} --node-rank I --head {meeting.endpoint}, and the same "
        "options and script"
    )
    if launcher is not None:
        advice = f"see that it reaches {meeting.head}, and what its agent says in the logs"
    return Roster(seats, request.ranks_per_node, terms(request), advice)


def _watch(
    request: LaunchRequest,
    meeting: Meeting,
    launcher: HostLauncher | None,
    interface: str | None,
    supervisor: Supervisor,
    roster: Roster,
    token: str,
    logs: Path,
) -> Finish:
    """Start this host's ranks and the agents of others, and wait for the end of the run."""
    with AgentStarter(roster, logs) as starter:
        if launcher is not None:
            endpoint = f"{meeting.head}:{supervisor.endpoint.rpartition(':')[2]}"
            key = starter.hand_over(token, None if launcher.passes_input else keys.default_file(endpoint))
            starter.start(launcher.commands(request, agent_command(request, endpoint, interface, key)))
            supervisor.attend(starter.look)
        elif meeting.node is not None:
            start_ranks(request, supervisor.agent, _setting(request, meeting, token, logs), LocalLauncher())
        finish = supervisor.watch()
        supervisor.settle()
    return finish


def follow(request: LaunchRequest, meeting: Meeting, *, quiet: bool = False) -> int:
    """Follow a run that another host leads: start this host's ranks, and give the exit status of the run.

    Args:
        request: what is started, of which this host starts its node.
        meeting: where to come to.
        quiet: whether the user is told elsewhere how the run ended.

    Returns:
        As `lead`.

    Raises:
        RequestError: the key cannot be read.
        RunError: no coordinator answers, or there is no key.
    """
    open_files.check(request.size)
    source = meeting.key or str(keys.default_file(meeting.endpoint))
    token, numbers = _await_key(source, request.join_timeout_s, meeting), count()  # one for all attempts
    finish, again = _follow_once(request, meeting, source, token, next(numbers), quiet=quiet)
    while again and not quiet:  # else what started this agent starts another
        finish, again = _follow_once(request, meeting, source, token, next(numbers), quiet=quiet)
    return finish.status


def _follow_once(
    request: LaunchRequest, meeting: Meeting, source: str, token: str, number: int, *, quiet: bool
) -> tuple[Finish, bool]:
    """Follow one attempt, and say whether there is another."""
    if meeting.node is None:
        raise TypeError("expected a meeting with this host's node, got one without")
    logs = make_log_folder(attempt_folder(_own_folder(request, meeting), number))
    node, own = meeting.node, (request.nodes, request.ranks_per_node)
    hello = AgentHello(node, *own, host_name(), meeting.address, str(logs), terms(request))
    service = AgentService(
        meeting,
        token,
        hello,
        request.join_timeout_s,
        lambda rank: "\n".join(read_tail(log_file(logs, rank))),
        reread=lambda: keys.read(source) if _is_file(source) else None,
    )

    def start(agent: Agent) -> None:
        start_ranks(request, agent, _setting(request, meeting, service.token, logs), LocalLauncher())

    finish = service.serve(start)
    if not quiet:
        tell(finish, (), str(logs), str)
    if request.report and finish.status == 0 and node == 0:
        print_reports(reports_file(logs))
    return finish, service.again


def _setting(request: LaunchRequest, meeting: Meeting, token: str, logs: Path) -> Setting:
    first = (meeting.node or 0) * request.ranks_per_node
    ranks = range(first, first + request.ranks_per_node)
    return Setting(ranks, f"tcp://{meeting.head}:{meeting.port}", token, logs, meeting.address)


def _own_folder(request: LaunchRequest, meeting: Meeting) -> Path | None:
    """Name the folder of this host's logs: hosts may share the one that was chosen."""
    if request.log_dir is None:
        return None
    return request.log_dir / ("head" if meeting.node is None else f"node-{meeting.node}")


def _is_file(source: str) -> bool:
    return source != "-" and not source.startswith("fd:")


def _await_key(source: str, seconds: float, meeting: Meeting) -> str:
    """Read the run's key, which the host of node 0 may have to write first.

    Raises:
        RunError: it is not there in time.
    """
    end = time.monotonic() + seconds
    tell_at = min(end, time.monotonic() + TELL_S)
    while (token := keys.read(source)) is None:
        if tell_at <= time.monotonic() < end:
            say(f"waits up to {seconds:g} s for the key of the run at {meeting.endpoint}: {source} is not there yet")
            tell_at = end
        if time.monotonic() >= end:
            raise RunError(
                f"no key of the run at {meeting.endpoint}: {source} is not there after {seconds:g} s; start the run on "
                f"{meeting.head} with --node-rank 0, and where hosts share no home copy the file that it names, and "
                "give it with --key"
            )
        time.sleep(LOOK_S)
    return token


def _report(finish: Finish, roster: Roster, logs: Path) -> None:
    """Say what went wrong, with the log of the rank at fault, wherever that is."""
    tail: list[str] = []
    if finish.rank is not None:
        own = roster.seats[roster.node_of(finish.rank)].home
        tail = read_tail(log_file(logs, finish.rank)) if own else roster.tails.get(finish.rank, "").splitlines()
    folders = [str(logs), *(f"{seat.logs} on {seat.host}" for seat in roster.seats if seat.logs)]
    tell(finish, tail, "; ".join(folders), roster.place)
