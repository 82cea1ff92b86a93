"""Hosts for tests: network namespaces of this computer, joined by a link whose frames the system counts."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

IP = shutil.which("ip") or "/usr/sbin/ip"
INSIDE = [IP, "netns", "exec"]
BECOMES = ["unshare", "--uts", "sh", "-c"]
CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000


def reason() -> str | None:
    """Say why there can be no namespaces here; None if there can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    if os.geteuid():
        return "network namespaces need root"
    if not Path(IP).exists():
        return "network namespaces need ip (iproute2)"
    probe = f"mpl{os.getpid()}p"
    if subprocess.run([IP, "netns", "add", probe], capture_output=True, check=False).returncode:
        return "this system lets nobody make network namespaces"
    subprocess.run([IP, "netns", "delete", probe], capture_output=True, check=False)
    return None


def interruptible() -> None:
    """Do not ignore SIGINT, as what a shell's background job starts does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def called(name: str) -> str:
    """The name that the host of a namespace has for what runs there."""
    return name.rpartition("-")[2]


def inner(words: list[str]) -> tuple[str, list[str]]:
    """The namespace in which a command of `Host.start` runs, and what; of another command none, and itself."""
    begins, name, becomes = words[: len(INSIDE)], words[len(INSIDE) : len(INSIDE) + 1], words[len(INSIDE) + 1 :]
    if begins != INSIDE or becomes[: len(BECOMES)] != BECOMES:
        return "", words
    return name[0], becomes[len(BECOMES) + 2 :]


def enter(name: str) -> None:
    """Bring this process, which has one thread, where `Host.start` starts commands; files are those of the computer."""
    system = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", name).open("rb") as namespace:
        if system.setns(namespace.fileno(), CLONE_NEWNET) or system.unshare(CLONE_NEWUTS):
            raise OSError(ctypes.get_errno(), f"cannot enter {name}")
    socket.sethostname(called(name))
    platform._uname_cache = None  # type: ignore[attr-defined]  # who asked for this computer's name has it kept


@dataclass(frozen=True)
class Host:
    """A namespace with one interface beside loopback.

    Args:
        name: of the namespace, and of the host as programs in it see it.
        interface: its name.
        address: its address.
    """

    name: str
    interface: str
    address: str

    def start(self, *argv: str, **variables: str) -> subprocess.Popen[str]:
        """Start a command there, in a process group of its own."""
        become = f'hostname {called(self.name)}; exec "$@"'
        return subprocess.Popen(
            [*INSIDE, self.name, *BECOMES, become, "sh", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **variables},
            preexec_fn=interruptible,  # noqa: PLW1509 - no threads here
        )

    def sent_bytes(self) -> int:
        """Count the bytes of all frames that left by its interface."""
        file = f"/sys/class/net/{self.interface}/statistics/tx_bytes"
        found = subprocess.run([IP, "netns", "exec", self.name, "cat", file], capture_output=True, check=True)
        return int(found.stdout)

    def limit(self, rate: str) -> None:
        """Limit what it sends to a rate, such as `1gbit`."""
        shape = ["root", "tbf", "rate", rate, "burst", "128kb", "latency", "50ms"]
        command = [IP, "netns", "exec", self.name, "tc", "qdisc", "add", "dev", self.interface, *shape]
        subprocess.run(command, check=True)

    def cut(self) -> None:
        """Take its interface down: from now on nobody reaches it, and nobody is told."""
        subprocess.run([IP, "-n", self.name, "link", "set", self.interface, "down"], check=True)


@contextmanager
def hosts(prefix: str) -> Iterator[tuple[Host, Host]]:
    """Make two hosts, alpha and beta, on one link.

    Args:
        prefix: of the names of the namespaces, which no other test may use at the same time.
    """
    tag = f"{prefix}{os.getpid()}"
    made = [Host(f"{tag}-{name}", f"v{tag}{end}", f"10.77.0.{end}") for end, name in ((1, "alpha"), (2, "beta"))]
    one, other = made
    try:
        for host in made:
            subprocess.run([IP, "netns", "add", host.name], check=True)
        pair = ["type", "veth", "peer", "name", other.interface, "netns", other.name]
        subprocess.run([IP, "link", "add", one.interface, "netns", one.name, *pair], check=True)
        for host in made:
            for action in (
                ["addr", "add", f"{host.address}/24", "dev", host.interface],
                ["link", "set", host.interface, "up"],
                ["link", "set", "lo", "up"],
            ):
                subprocess.run([IP, "-n", host.name, *action], check=True)
        yield one, other
    finally:
        for host in made:
            subprocess.run([IP, "netns", "delete", host.name], capture_output=True, check=False)


@contextmanager
def switched(prefix: str, names: tuple[str, ...]) -> Iterator[tuple[Host, ...]]:
    """Make hosts of these names on one switch: a bridge in a namespace of its own.

    Args:
        prefix: of the names of the namespaces, which no other test may use at the same time.
        names: of the hosts.
    """
    tag = f"{prefix}{os.getpid()}"
    switch = f"{tag}-switch"
    made = tuple(Host(f"{tag}-{name}", f"v{tag}{end}", f"10.77.0.{end}") for end, name in enumerate(names, 1))
    try:
        for name in (switch, *(host.name for host in made)):
            subprocess.run([IP, "netns", "add", name], check=True)
        subprocess.run([IP, "-n", switch, "link", "add", "bridge", "type", "bridge"], check=True)
        subprocess.run([IP, "-n", switch, "link", "set", "bridge", "up"], check=True)
        for host in made:
            port = f"p{host.interface[1:]}"
            peer = ["type", "veth", "peer", "name", port, "netns", switch]
            subprocess.run([IP, "link", "add", host.interface, "netns", host.name, *peer], check=True)
            subprocess.run([IP, "-n", switch, "link", "set", port, "master", "bridge", "up"], check=True)
            for action in (
                ["addr", "add", f"{host.address}/24", "dev", host.interface],
                ["link", "set", host.interface, "up"],
                ["link", "set", "lo", "up"],
            ):
                subprocess.run([IP, "-n", host.name, *action], check=True)
        yield made
    finally:
        for name in (switch, *(host.name for host in made)):
            subprocess.run([IP, "netns", "delete", name], capture_output=True, check=False)


@contextmanager
def named(made: tuple[Host, ...]) -> Iterator[None]:
    """Have the hosts know each other by name: a file of hosts for each, in place of the computer's."""
    files = {host.name: Path("/etc/netns") / host.name for host in made}
    known = "".join(f"{host.address} {host.name.rpartition('-')[2]}\n" for host in made)
    try:
        for folder in files.values():
            folder.mkdir(parents=True)
            # Who asks for the names of addresses would wait for servers that are not there.
            (folder / "resolv.conf").write_text("options timeout:1 attempts:1\n")
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{known}")
        yield
    finally:
        for folder in files.values():
            shutil.rmtree(folder, ignore_errors=True)
