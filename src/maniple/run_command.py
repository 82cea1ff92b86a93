"""`maniple run`: a script as one program on several ranks, of this host or of several."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from maniple.process import environment
from maniple.process.error import RequestError

if TYPE_CHECKING:
    from maniple.runtime.cluster.launcher import LaunchRequest
    from maniple.runtime.cluster.meeting import Meeting

__all__: list[str] = []


# Options end at the script: everything after it belongs to the script.
@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--nodes", "--nnodes", default=1, show_default=True, help="Nodes, each with its own processes.")
@click.option("--ranks-per-node", "--nproc-per-node", default=1, show_default=True, help="Processes of each node.")
@click.option("--processors", default=1, show_default=True, help="Processors of each rank.")
@click.option("--device", default="cpu", show_default=True, help="What processors are: cpu, cuda, null, ...")
@click.option("--machine", type=click.Path(path_type=Path), metavar="FILE", help="Machine (TOML) that this run is.")
@click.option("--cores", type=int, help="Cores of each processor.  [default: the host's, shared evenly]")
@click.option("--bind/--no-bind", default=None, help="Keep ranks to cores.  [default: if they take up all]")
@click.option("--mapper", metavar="NAME", help="Mapper that the program uses by default.")
@click.option("--memory", metavar="SIZE", help="The most of each memory, such as 8GiB.  [default: what is there]")
@click.option("--compile", "compiles", is_flag=True, help="Trainers have torch compile chains of their operators.")
@click.option("--deterministic", is_flag=True, help="Run launches that are not traced in the order of the program.")
@click.option("--port", type=int, help="Port of the control socket.  [default: a free one]")
@click.option("--join-timeout", "join_timeout_s", default=60.0, show_default=True, help="Seconds to wait for ranks.")
@click.option(
    "--hang-timeout", "hang_timeout_s", default=300.0, show_default=True, help="Seconds for one that is stuck."
)
@click.option("--log-dir", type=click.Path(path_type=Path), help="Folder for the ranks' log files.")
@click.option("--record", type=click.Path(path_type=Path), metavar="PATH", help="Write a timeline of the run there.")
@click.option("--report", is_flag=True, help="Print last what trainers report: steps predicted and measured.")
@click.option("--transport", default="shared", show_default=True, help="How tiles travel: shared, zmq, ...")
@click.option("--encrypt-tiles", is_flag=True, help="Encrypt tiles that go through sockets (CURVE).")
@click.option("--verify-tiles", is_flag=True, help="Refuse tiles that were altered on their way through sockets.")
@click.option("--launcher", default="local", show_default=True, metavar="NAME[:ARGUMENT]", help="What starts ranks.")
@click.option("--node-rank", type=int, metavar="I", help="Which of several hosts this is; 0 leads the run.")
@click.option("--head", metavar="HOST:PORT", help="Where the hosts of a run meet: an address of the host of node 0.")
@click.option(
    "--interface", metavar="NAME", help="Interface (or address) of this host for the run.  [default: the route's]"
)
@click.option("--key", metavar="FILE", help="The run's key: a file of mode 0600, fd:N, or - for standard input.")
@click.option("--hosts", metavar="A,B", help="Hosts that ssh reaches: their agents are started from here.")
@click.option("--hostfile", type=click.Path(path_type=Path), metavar="FILE", help="The same, as lines HOST [slots=N].")
@click.option("--max-restarts", default=0, show_default=True, metavar="N", help="Begin again so often after a failure.")
@click.option("--min-nodes", type=int, metavar="M", help="Go on with as few, where hosts were lost.  [default: all]")
@click.option(
    "--imports", default="maniple.rank_imports", show_default=True, metavar="MODULE", help="What ranks import as one."
)
@click.option("--fresh", is_flag=True, help="Give each rank an interpreter of its own, which imports for itself.")
@click.option("--survey", is_flag=True, hidden=True, help="Look at hosts that may differ.")
@click.option("--join", is_flag=True, hidden=True, help="Be an agent that a launcher started.")
@click.option("--dry-run", is_flag=True, help="Print each rank's command and variables, and start nothing.")
@click.option("-m", "as_module", is_flag=True, help="Run a module instead of a script.")
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="(SCRIPT | -m MODULE) [ARGUMENTS]...")
def run(
    target: tuple[str, ...],
    node_rank: int | None,
    head: str | None,
    interface: str | None,
    key: str | None,
    memory: str | None,
    hosts: str | None,
    hostfile: Path | None,
    fresh: bool,  # noqa: FBT001  (click passes flags by name)
    join: bool,  # noqa: FBT001
    dry_run: bool,  # noqa: FBT001
    as_module: bool,  # noqa: FBT001
    **options: Any,
) -> int:
    """Run a script as one program on several ranks.

    Rank 0's output is shown; every rank's goes to its log file. Nodes are emulated on this host, unless --node-rank
    and --head say which of several hosts this is.
    """
    from maniple.runtime.cluster.launcher import LaunchRequest
    from maniple.runtime.cluster.registry import count_hosts, launches_hosts
    from maniple.runtime.cluster.run import run as start

    launcher = _name_launcher(str(options["launcher"]), hosts, hostfile)
    wanted = dict(options, launcher=launcher, imports=None if fresh else options["imports"])
    if memory is not None:
        from maniple.request import amount

        wanted["memory_bytes"] = int(amount("--memory", memory))
    away = launches_hosts(str(wanted["launcher"]))
    if away and click.get_current_context().get_parameter_source("nodes") is ParameterSource.DEFAULT:
        wanted["nodes"] = count_hosts(str(wanted["launcher"]))
    spread = node_rank is not None or head is not None or away
    request = LaunchRequest(("-m", *target) if as_module else target, spread=spread, **wanted)
    _check_spare(request, away=away)
    if away and (node_rank is not None or head is not None or key is not None):
        raise RequestError("--node-rank, --head and --key: a launcher of hosts says these itself; leave them out")
    if away:
        return _lead_from_here(request, interface, dry_run=dry_run)
    if not spread:
        for option, given in {"--interface": interface, "--key": key}.items():
            if given is not None:
                raise RequestError(f"{option}: this run is on one host; give --node-rank and --head, or leave it out")
        if dry_run:
            _show_commands(request)
            return 0
        return start(request)
    meeting = _meet(request, node_rank, head, interface, key, joins=join)
    if dry_run:
        _show_commands(request, meeting)
        return 0
    return _take_part(request, meeting, joins=join)


def _check_spare(request: LaunchRequest, *, away: bool) -> None:
    if request.min_nodes is not None and not away:
        raise RequestError(
            "--min-nodes: only a launcher that knows the hosts goes on with fewer; give --hosts, --hostfile or "
            "--launcher, or leave it out"
        )


def _name_launcher(launcher: str, hosts: str | None, hostfile: Path | None) -> str:
    """Give the launcher that is meant: `--hosts` and `--hostfile` are ssh's."""
    if hosts is None and hostfile is None:
        return launcher
    if hosts is not None and hostfile is not None:
        raise RequestError("--hosts and --hostfile: expected one of them, got both; leave one out")
    name = "ssh" if launcher == "local" else launcher
    if ":" in name:
        raise RequestError(f"--launcher {launcher}: its hosts stand there; leave --hosts and --hostfile out")
    return f"{name}:{hosts}" if hosts is not None else f"{name}:@{hostfile}"


def _lead_from_here(request: LaunchRequest, interface: str | None, *, dry_run: bool) -> int:
    """Lead a run whose agents a launcher starts; this host starts no ranks, unless the launcher reaches it, too."""
    from maniple.runtime.cluster.host_launcher import HostLauncher, agent_command
    from maniple.runtime.cluster.host_run import lead
    from maniple.runtime.cluster.hosts.interface import address_towards, check_reachable, resolve
    from maniple.runtime.cluster.meeting import Meeting
    from maniple.runtime.cluster.registry import make_launcher

    launcher = make_launcher(request)
    if not isinstance(launcher, HostLauncher):
        raise TypeError(f"expected a launcher of hosts, got {type(launcher).__name__}")
    script = launcher.script(request)
    if script is not None:
        click.echo(script, nl=False)
        return 0
    launcher.hosts(request)
    if dry_run:
        endpoint = f"(this host):{request.port or '(chosen at launch)'}"
        for command in launcher.commands(request, agent_command(request, endpoint, interface)):
            click.echo(shlex.join(command.argv))
        return 0
    towards = launcher.towards(request)
    own = address_towards(resolve(towards), interface)
    if request.nodes > 1:
        check_reachable(own, f"this host, as seen from {towards}", "give the interface for the run with --interface")
    return lead(request, Meeting(None, own, request.port, own), launcher, interface)


def _meet(
    request: LaunchRequest,
    node_rank: int | None,
    head: str | None,
    interface: str | None,
    key: str | None,
    *,
    joins: bool,
) -> Meeting:
    """Say where the hosts of a run meet, and which this one is."""
    from maniple.runtime.cluster.hosts.interface import (
        address_towards,
        check_reachable,
        is_own,
        resolve,
        split_endpoint,
    )
    from maniple.runtime.cluster.meeting import Meeting

    if joins and node_rank is None:
        node_rank = environment.node_of_host()
    if node_rank is None or head is None:
        raise RequestError(
            "expected --node-rank and --head together, got one; on each host run maniple run --nnodes N --node-rank I "
            "--head HOST:PORT SCRIPT, where HOST is that of node 0"
        )
    if not 0 <= node_rank < request.nodes:
        raise RequestError(
            f"--node-rank: expected 0 to {request.nodes - 1} of --nnodes {request.nodes}, got {node_rank}"
        )
    if request.port is not None or request.launcher != "local":
        raise RequestError(
            "--port and --launcher: with --head the port stands there and ranks are this host's; leave them out"
        )
    host, port = split_endpoint(head)
    address = resolve(host)
    leads = node_rank == 0 and not joins
    if leads and not is_own(address):
        raise RequestError(
            f"--head {head}: {address} is no address of this host, which leads the run; give an address "
            "of this host, or another --node-rank"
        )
    own = address_towards(address, interface)
    if leads and interface is None:
        own = address
    if leads and request.nodes > 1:
        check_reachable(address, f"--head {head}", "give another address of this host with --head, on all hosts")
    return Meeting(node_rank, address, port, own, key)


def _take_part(request: LaunchRequest, meeting: Meeting, *, joins: bool) -> int:
    from maniple.runtime.cluster.host_run import follow, lead

    return follow(request, meeting, quiet=joins) if joins or meeting.node else lead(request, meeting)


def _show_commands(request: LaunchRequest, meeting: Meeting | None = None) -> None:
    from maniple.runtime.cluster.registry import make_launcher
    from maniple.runtime.cluster.run import command, ways
    from maniple.runtime.control.control import place

    launcher = make_launcher(request)
    within, between = ways(request, launcher)
    click.echo(f"maniple: tiles travel within a host through {within}, between hosts through {between}", err=True)
    ranks, endpoint, interface = range(request.size), "(chosen at launch)", None
    if meeting is not None and meeting.node is not None:
        first = meeting.node * request.ranks_per_node
        ranks, endpoint = range(first, first + request.ranks_per_node), f"tcp://{meeting.endpoint}"
        interface = meeting.address
    for rank in ranks:
        argv, variables = command(request, rank, endpoint, "(secret)", launcher=launcher, interface=interface)
        told = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
        click.echo(f"{place(rank, request.ranks_per_node)}: {told} {shlex.join(argv)}")
