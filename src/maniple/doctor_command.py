"""`maniple doctor`: what this installation and this host offer, or several hosts and the ways between them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from maniple.process.error import RequestError, RunError

if TYPE_CHECKING:
    from maniple.doctor import Finding

__all__: list[str] = []


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--hosts", metavar="A,B", help="Look at these hosts, which ssh reaches, and the ways between them.")
@click.option("--hostfile", type=click.Path(path_type=Path), metavar="FILE", help="The same, as lines HOST [slots=N].")
@click.option("--launcher", metavar="NAME[:ARGUMENT]", help="What reaches the hosts in place of ssh: slurm, mpi:A,B.")
@click.option("--nnodes", type=int, metavar="N", help="How many hosts, where each starts this command itself.")
@click.option("--node-rank", type=int, metavar="I", help="Which of them this is; 0 prints what was found.")
@click.option("--head", metavar="HOST:PORT", help="Where they meet: an address of the host of node 0.")
@click.option("--interface", metavar="NAME", help="Interface (or address) that runs use.  [default: the route's]")
@click.option("--key", metavar="FILE", help="The key of this look, as for maniple run.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write hosts and links as a machine (TOML).")
def doctor(as_json: bool, output: Path | None, **options: object) -> int:  # noqa: FBT001
    """Print what this installation and host offer, and what is missing.

    With --hosts, or --nnodes, --node-rank and --head on each host: what the hosts are, and how fast bytes go between
    each two of them, at each interface.
    """
    from maniple.doctor import examine

    given = {name: value for name, value in options.items() if value is not None}
    if not given:
        if output is not None:
            raise RequestError("-o: expected several hosts, got this one; give --hosts, or run maniple calibrate")
        return _show(examine(), as_json=as_json)
    found = _survey(given)
    if found is None:
        return 0
    from maniple.host_report import build_machine, findings

    told = findings(found)
    if output is not None:
        build_machine(found).save(output)
    status = _show(told, as_json=as_json)
    if output is not None and not as_json:
        click.echo(f"written to {output}")
    return status


def _survey(options: dict[str, object]) -> dict[str, list[dict[str, object]]] | None:
    """Have a rank on each host look around, as any program is run on them; None where another host is told.

    Raises:
        RequestError: the options do not say which hosts.
        RunError: a host cannot be reached, or something else went wrong; it has been said.
    """
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "maniple.cli", "run", "--survey", "--transport", "zmq", "--cores", "1", *words]
    done = subprocess.run([*command, "-m", "maniple.host_survey"], stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603
    if done.returncode == 2:
        raise RequestError("these hosts cannot be looked at as asked; correct what is said above")
    if done.returncode:
        raise RunError("not all hosts could be looked at; see to what is said above, and look again")
    lines = done.stdout.strip().splitlines()
    if options.get("node_rank") not in {None, 0}:
        return None
    if not lines:
        raise RunError("the first host said nothing; see the logs that are named above")
    found: dict[str, list[dict[str, object]]] = json.loads(lines[-1])
    return found


def _show(findings: tuple[Finding, ...], *, as_json: bool) -> int:
    from maniple.doctor import text

    sound = all(finding.ok for finding in findings)
    if as_json:
        rows = [{"name": f.name, "value": f.value, "ok": f.ok, "next": f.next} for f in findings]
        click.echo(json.dumps({"ok": sound, "findings": rows}))
    else:
        click.echo(text(findings))
    return 0 if sound else 1
