"""Lists of hosts, as `--hosts` and `--hostfile` give them.

# one host a line, with the number of its slots; as for mpirun and deepspeed, but an empty line is refused
alpha slots=2
beta  slots=2
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from maniple.process.error import RequestError

if TYPE_CHECKING:
    from pathlib import Path

__all__: list[str] = []

# A name or address, with a user before it if need be; nothing that a shell or an option could be.
_NAME = re.compile(r"(?:[A-Za-z0-9_.][A-Za-z0-9_.-]*@)?[A-Za-z0-9_][A-Za-z0-9_.-]*")
_LINE = re.compile(r"(?P<host>\S+)(?:\s+slots=(?P<slots>\d{1,6}))?")


@final
@dataclass(frozen=True, slots=True)
class ListedHost:
    """A host of a list.

    Args:
        name: its name or address, with a user before it if need be.
        slots: how many ranks it takes; None where the list does not say.
    """

    name: str
    slots: int | None = None


def split_hosts(text: str, option: str = "--hosts") -> list[ListedHost]:
    """Read `alpha,beta`.

    Raises:
        RequestError: an entry is no host, or stands there twice.
    """
    return _once([ListedHost(_name(part, f"{option} {text}")) for part in text.split(",")], option)


def read_hostfile(path: Path) -> list[ListedHost]:
    """Read a file of hosts.

    Raises:
        RequestError: a line is no host, or the file cannot be read; names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = "it is no text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise RequestError(f"--hostfile {path}: {why}; name a text file of one host a line") from error
    found = []
    for number, line in enumerate(lines, 1):
        where, told = f"--hostfile {path}, line {number}", line.partition("#")[0].strip()
        if not told and "#" in line:
            continue
        if not told:
            raise RequestError(f"{where}: expected a host, got an empty line; remove it")
        match = _LINE.fullmatch(told)
        if match is None:
            raise RequestError(f"{where}: expected HOST or HOST slots=N, got {told!r}; correct it")
        slots = match["slots"]
        if slots is not None and int(slots) < 1:
            raise RequestError(f"{where}: expected at least 1 slot, got {slots}; remove the line, or correct it")
        found.append(ListedHost(_name(match["host"], where), None if slots is None else int(slots)))
    if not found:
        raise RequestError(f"--hostfile {path}: expected hosts, got none; write one a line")
    return _once(found, f"--hostfile {path}")


def check_slots(hosts: list[ListedHost], nodes: int, ranks_per_node: int, option: str) -> list[ListedHost]:
    """Give the hosts of so many nodes.

    Raises:
        RequestError: there are fewer, or one has fewer slots than it gets ranks.
    """
    if len(hosts) < nodes:
        names = ", ".join(host.name for host in hosts)
        raise RequestError(
            f"{option}: expected {nodes} hosts for --nnodes {nodes}, got {len(hosts)}: {names}; add more hosts"
        )
    for host in hosts[:nodes]:
        if host.slots is not None and host.slots < ranks_per_node:
            raise RequestError(
                f"{option}: host {host.name} has {host.slots} slots, and --nproc-per-node asks for {ranks_per_node} "
                "ranks; give it more slots, or start fewer ranks"
            )
    return hosts[:nodes]


def _name(text: str, where: str) -> str:
    name, _, port = text.partition(":")
    if port or text.endswith(":"):
        raise RequestError(
            f"{where}: expected a host, got {text!r} with a port; leave it out: ports of ssh stand in ~/.ssh/config"
        )
    if not _NAME.fullmatch(name):
        raise RequestError(f"{where}: expected a host, got {text!r}; write a name or an IPv4 address")
    return name


def _once(hosts: list[ListedHost], option: str) -> list[ListedHost]:
    names = [host.name for host in hosts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RequestError(
            f"{option}: host {twice} stands there twice; name it once, and start several ranks there with "
            "--nproc-per-node"
        )
    return hosts
