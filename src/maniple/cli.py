"""The command line: `maniple run`, `maniple doctor`, `maniple list`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, final

import click

from maniple.calibrate_command import calibrate
from maniple.check_rule_command import check_rule
from maniple.fit_command import fit
from maniple.frontier_command import frontier
from maniple.list_command import list_names
from maniple.partition_command import partition
from maniple.process.error import ManipleError, RequestError, RunError, nearest
from maniple.search_command import compare, explain, search
from maniple.simulate_command import simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []


@final
class _Commands(click.Group):
    """The group of all commands; a slip in a command's name gets the nearest."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise RequestError(f"there is no command {args[0]!r}{nearest(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="maniple", message="maniple %(version)s")
def cli() -> None:
    """Run and inspect Maniple programs.

    Exit status: 0 done, 1 the run failed, 2 the request was wrong, 130 interrupted.
    """


# Options end at the script: everything after it belongs to the script.
@cli.command(context_settings={"allow_interspersed_args": False})
@click.option("--nodes", "--nnodes", default=1, show_default=True, help="Nodes, each with its own processes.")
@click.option("--ranks-per-node", "--nproc-per-node", default=1, show_default=True, help="Processes of each node.")
@click.option("--processors", default=1, show_default=True, help="Processors of each rank.")
@click.option("--device", default="cpu", show_default=True, help="What processors are: cpu, cuda, null, ...")
@click.option("--machine", type=click.Path(path_type=Path), metavar="FILE", help="Machine (TOML) that this run is.")
@click.option("--cores", type=int, help="Cores of each processor.  [default: the host's, shared evenly]")
@click.option("--bind/--no-bind", default=None, help="Keep ranks to cores.  [default: if they take up all]")
@click.option("--mapper", metavar="NAME", help="Mapper that the program uses by default.")
@click.option("--deterministic", is_flag=True, help="Run launches that are not traced in the order of the program.")
@click.option("--port", type=int, help="Port of the control socket.  [default: a free one]")
@click.option("--join-timeout", default=60.0, show_default=True, help="Seconds that ranks wait for each other.")
@click.option("--hang-timeout", default=300.0, show_default=True, help="Seconds that ranks wait for one that is stuck.")
@click.option("--log-dir", type=click.Path(path_type=Path), help="Folder for the ranks' log files.")
@click.option("--record", type=click.Path(path_type=Path), metavar="PATH", help="Write a timeline of the run there.")
@click.option("--report", is_flag=True, help="Print last what trainers report: steps predicted and measured.")
@click.option("--transport", default="shared", show_default=True, help="How tiles travel: shared, zmq, ...")
@click.option("--launcher", default="local", show_default=True, metavar="NAME[:ARGUMENT]", help="What starts ranks.")
@click.option("--dry-run", is_flag=True, help="Print each rank's command and variables, and start nothing.")
@click.option("-m", "as_module", is_flag=True, help="Run a module instead of a script.")
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="(SCRIPT | -m MODULE) [ARGUMENTS]...")
def run(
    nodes: int,
    ranks_per_node: int,
    processors: int,
    device: str,
    machine: Path | None,
    cores: int | None,
    bind: bool | None,  # noqa: FBT001
    mapper: str | None,
    deterministic: bool,  # noqa: FBT001  (click passes flags by name)
    port: int | None,
    join_timeout: float,
    hang_timeout: float,
    log_dir: Path | None,
    record: Path | None,
    report: bool,  # noqa: FBT001  (click passes flags by name)
    transport: str,
    launcher: str,
    dry_run: bool,  # noqa: FBT001  (click passes flags by name)
    as_module: bool,  # noqa: FBT001
    target: tuple[str, ...],
) -> int:
    """Run a script as one program on several ranks.

    Rank 0's output is shown; every rank's goes to its log file.
    """
    from maniple.runtime.cluster.launcher import LaunchRequest
    from maniple.runtime.cluster.run import run as start

    request = LaunchRequest(
        target=("-m", *target) if as_module else target,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        processors=processors,
        device=device,
        machine=machine,
        cores=cores,
        bind=bind,
        port=port,
        join_timeout_s=join_timeout,
        hang_timeout_s=hang_timeout,
        mapper=mapper,
        deterministic=deterministic,
        log_dir=log_dir,
        record=record,
        report=report,
        transport=transport,
        launcher=launcher,
    )
    if dry_run:
        _show_commands(request)
        return 0
    return start(request)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> int:  # noqa: FBT001
    """Print what this installation and host offer, and what is missing."""
    from maniple.doctor import examine, text

    findings = examine()
    if as_json:
        rows = [{"name": f.name, "value": f.value, "ok": f.ok, "next": f.next} for f in findings]
        click.echo(json.dumps({"ok": all(f.ok for f in findings), "findings": rows}))
    else:
        click.echo(text(findings))
    return 0 if all(finding.ok for finding in findings) else 1


for command in (calibrate, check_rule, compare, explain, fit, frontier, list_names, partition, search, simulate):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status.

    Args:
        arguments: default those of this process.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    sys.exit(_status(given))


def _status(arguments: list[str]) -> int:
    # What follows `run SCRIPT` belongs to the script, --json included; `run` itself has no --json.
    as_json = "--json" in arguments and arguments[:1] != ["run"]
    try:
        outcome: object = cli.main(arguments, prog_name="maniple", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.ClickException as error:
        _complain("request", error.format_message(), as_json=as_json)
        return 2
    except RunError as error:
        _complain("run", str(error), as_json=as_json)
        return 1
    except ManipleError as error:
        _complain("request", str(error), as_json=as_json)
        return 2
    except (click.Abort, KeyboardInterrupt):
        return 130
    return outcome if isinstance(outcome, int) else 0


def _complain(kind: str, message: str, *, as_json: bool) -> None:
    if not as_json:
        click.echo(f"error: {message}", err=True)
        return
    what, _, following = message.partition("; ")
    told = {"kind": kind, "message": what, "next": following or "see maniple --help"}
    click.echo(json.dumps({"error": told}))


def _show_commands(request: object) -> None:
    import shlex

    from maniple.runtime.cluster.launcher import LaunchRequest
    from maniple.runtime.cluster.registry import make_launcher
    from maniple.runtime.cluster.run import command, ways
    from maniple.runtime.control.control import place

    if not isinstance(request, LaunchRequest):
        raise TypeError(f"expected a LaunchRequest, got {type(request).__name__}")
    launcher = make_launcher(request)
    within, between = ways(request, launcher)
    click.echo(f"maniple: tiles travel within a host through {within}, between hosts through {between}", err=True)
    for rank in range(request.size):
        argv, variables = command(request, rank, "(chosen at launch)", "(secret)", launcher=launcher)
        told = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
        click.echo(f"{place(rank, request.ranks_per_node)}: {told} {shlex.join(argv)}")


if __name__ == "__main__":
    main()
