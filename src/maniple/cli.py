"""The command line: the group of all commands, and how its errors end it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, final

import click

from maniple.calibrate_command import calibrate
from maniple.check_rule_command import check_rule
from maniple.doctor_command import doctor
from maniple.explain_command import compare, explain
from maniple.fit_command import fit
from maniple.frontier_command import frontier
from maniple.list_command import list_names
from maniple.partition_command import partition
from maniple.process.error import ManipleError, RequestError, RunError, nearest
from maniple.run_command import run
from maniple.search_command import search
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


for command in (
    calibrate,
    check_rule,
    compare,
    doctor,
    explain,
    fit,
    frontier,
    list_names,
    partition,
    run,
    search,
    simulate,
):
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


if __name__ == "__main__":
    main()
